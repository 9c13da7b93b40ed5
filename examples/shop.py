"""An application with two subscribers: `tenantry serve worker --app shop:app`, in this folder."""

from tenantry import Context, Event, Tenantry

app = Tenantry("shop")


@app.subscriber("invoices", types=["invoice.*"])
async def book(event: Event, context: Context) -> None:
    """Each tenant's invoices, one after the other, in the order in which they were published."""
    print(f"{event.tenant}: {event.type} {event.data['total']}")


@app.subscriber("mails", types=["order.created"], order="parallel", retries=10)
def send_mail(event: Event, context: Context) -> None:
    """A plain function may block: it runs in a thread."""
    print(f"{event.tenant}: thank you for order {event.data['order']}")

"""Settings: which source wins, what is shown, and what a mistake is answered with."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tenantry import config
from tenantry.cli.options import Options
from tenantry.config import Settings, load
from tenantry.errors import ConfigError


def origins(**flags: object) -> dict[str, tuple[str, str]]:
    return {name: (value, origin) for name, value, origin in load(flags).rows()}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert origins()["namespace"] == ("tenantry", "default")
    file = tmp_path / "tenantry.toml"
    file.write_text('namespace = "from-file"\nnats_url = "nats://file"\n')
    assert origins()["namespace"] == ("from-file", "file tenantry.toml")
    assert origins()["nats_url"] == ("nats://file", "file tenantry.toml")
    monkeypatch.setenv("TENANTRY_NAMESPACE", "from-env")
    assert origins()["namespace"] == ("from-env", "environment TENANTRY_NAMESPACE")
    assert origins(namespace="from-flag")["namespace"] == ("from-flag", "flag")
    assert origins(namespace=None)["namespace"] == ("from-env", "environment TENANTRY_NAMESPACE")


def test_the_names_everyone_uses_are_understood_and_ours_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://everyone")
    monkeypatch.setenv("DATABASE_URL", "postgresql://everyone")
    assert origins()["nats_url"] == ("nats://everyone", "environment NATS_URL")
    assert origins()["database_url"] == ("postgresql://everyone", "environment DATABASE_URL")
    monkeypatch.setenv("TENANTRY_NATS_URL", "nats://ours")
    assert origins()["nats_url"] == ("nats://ours", "environment TENANTRY_NATS_URL")


def test_pg_variables_mean_that_libpq_is_to_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db")
    assert origins()["database_url"] == ("postgresql://", "environment PGHOST")
    monkeypatch.setenv("DATABASE_URL", "postgresql://other")
    assert origins()["database_url"] == ("postgresql://other", "environment DATABASE_URL")


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://shop:hidden1@db:5432/shop?password=hidden3")
    monkeypatch.setenv("NATS_TOKEN", "hidden2")
    shown = str(load().rows()) + repr(load().settings) + str(load())
    assert "hidden" not in shown
    assert origins()["database_url"][0] == "postgresql://shop:********@db:5432/shop"


def test_a_password_in_the_nats_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://user:hidden@broker:4222,nats://token-hidden@other:4222")
    shown = origins()["nats_url"][0]
    assert "hidden" not in shown
    assert "broker:4222" in shown


def test_a_wrong_value_names_its_origin_and_every_place_it_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANTRY_DATABASE_POOL", "many")
    with pytest.raises(ConfigError) as caught:
        load()
    for part in ("database_pool", "'many'", "TENANTRY_DATABASE_POOL", "--database-pool", "tenantry.toml"):
        assert part in str(caught.value)


def test_a_misspelt_setting_in_the_file_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "tenantry.toml").write_text('nats_ulr = "x"')
    with pytest.raises(ConfigError, match="nats_ulr; did you mean nats_url"):
        load()


def test_a_misspelt_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANTRY_NATS_ULR", "x")
    assert load().unknown_variables == ("TENANTRY_NATS_ULR",)


def test_a_file_that_is_named_must_exist_and_be_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml to exist"):
        load(file=tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("namespace = ")
    with pytest.raises(ConfigError, match=r"cannot read .*broken\.toml"):
        load(file=broken)


def test_the_namespace_must_fit_into_a_subject() -> None:
    with pytest.raises(ConfigError, match=r"expected namespace to match .*, got: 'my shop'"):
        load({"namespace": "my shop"})


@pytest.mark.parametrize("app", ["shop:app", "company.shop:app", "_shop2.main:the_app"])
def test_an_application_is_an_attribute_of_a_module(app: str) -> None:
    assert load({"app": app}).settings.app == app


@pytest.mark.parametrize("app", ["shop", "shop.app", "shop:", ":app", "shop:app.inner", "my-shop:app", "shop.py:1", ""])
def test_what_is_no_application_may_have_been_meant_as_the_namespace(app: str) -> None:
    with pytest.raises(ConfigError, match=r"package\.module:attribute, like shop:app, got: .* now `namespace`"):
        load({"app": app})


@pytest.mark.parametrize("setting", ["lake", "checkpoints"])
def test_where_tables_are_kept_is_a_folder_or_an_address(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    places = {
        "lake": str(tmp_path / "lake"),
        "~/lake": "/home/me/lake",
        "/srv/lake": "/srv/lake",
        "s3://shop/lake": "s3://shop/lake",
        "hdfs://host:9000/~x": "hdfs://host:9000/~x",
    }
    for given, place in places.items():
        assert getattr(load({setting: given}).settings, setting) == place
    with pytest.raises(ConfigError, match="expected a folder or an address"):
        load({setting: ""})


def test_settings_of_spark_are_json_wherever_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tenantry.toml"
    file.write_text("""spark_config = '{"spark.executor.memory": "1g"}'""")
    assert load().settings.spark_config == {"spark.executor.memory": "1g"}
    monkeypatch.setenv("TENANTRY_SPARK_CONFIG", '{"spark.executor.memory": "2g"}')
    assert load().settings.spark_config == {"spark.executor.memory": "2g"}
    assert load({"spark_config": "{}"}).settings.spark_config == {}
    file.write_text('[spark_config]\n"spark.executor.memory" = "1g"')
    with pytest.raises(ConfigError, match=r"""flat: write spark_config = '{"name": "value"}'"""):
        load()


@pytest.mark.parametrize("setting", ["spark_config", "lake_options"])
@pytest.mark.parametrize("text", ['{"a.secret": 1, "b": "hidden"}', '["hidden"]', "hidden"])
def test_what_is_not_an_object_of_strings_is_refused_and_not_shown(setting: str, text: str) -> None:
    with pytest.raises(ConfigError, match="expected a JSON object of strings") as caught:
        load({setting: text})
    assert "hidden" not in str(caught.value)


def test_keys_of_the_object_store_and_of_spark_are_never_shown() -> None:
    options = '{"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_SECRET_ACCESS_KEY": "hid@den"}'
    spark = '{"spark.hadoop.fs.s3a.access.key": "hidden", "spark.executor.memory": "1g"}'
    configuration = load({"lake_options": options, "spark_config": spark})
    shown = origins(lake_options=options, spark_config=spark)
    assert shown["lake_options"][0] == "********"
    assert shown["spark_config"][0] == '{"spark.hadoop.fs.s3a.access.key":"********","spark.executor.memory":"1g"}'
    assert "hid" not in repr(configuration)


def test_what_is_off_or_zero_is_shown_as_such() -> None:
    shown = origins(pipelines=False, nats_port=0)
    assert (shown["pipelines"][0], shown["nats_port"][0], shown["spark_config"][0]) == ("false", "0", "")
    assert origins(pipelines="no")["pipelines"] == ("false", "flag")


@pytest.mark.parametrize("setting", ["pipeline_batch", "table_seconds", "pipeline_restart_seconds"])
@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon"])
def test_batches_and_times_are_positive(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: .*got: '{value}'"):
        load({setting: value})


def test_every_setting_says_what_it_is_for() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_the_reference_lists_every_setting() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .*? \| (.+?) \|$", text, re.MULTILINE)
    documented = {name: (re.findall(r"`(\w+)`", variables), meaning) for name, variables, meaning in rows}
    assert documented == {
        name: (config.variables(name), field.description) for name, field in config.Settings.model_fields.items()
    }


def test_every_setting_is_a_flag() -> None:
    assert {field.name for field in fields(Options)} == {"config", *config.Settings.model_fields}


def test_an_address_that_is_none_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "http://bob:hidden@host")
    with pytest.raises(ConfigError, match=r"nats_url: .*expected a server address.*environment NATS_URL") as caught:
        load()
    assert "hidden" not in str(caught.value)


def test_variables_are_upper_case_and_empty_ones_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("tenantry_namespace", "lower")
    monkeypatch.setenv("TENANTRY_NAMESPACE", "")
    monkeypatch.setenv("PGHOST", "")
    assert origins()["namespace"] == ("tenantry", "default")
    assert origins()["database_url"] == ("", "default")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:hid,den@h/db", "postgresql://u:********@h/db"),
        ("postgresql://u:hid?den@h/db", "postgresql://u:********@h/db"),
        ("postgresql://u@h1:1,h2:2/db?password=hidden", "postgresql://u@h1:1,h2:2/db"),
        ("host=h password=hidden", "********"),
    ],
)
def test_addresses_are_shown_without_secrets(address: str, shown: str) -> None:
    assert config.without_secrets(address) == shown

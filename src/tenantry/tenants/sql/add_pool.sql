insert into tenantry.pools (retention) values (%(retention)s) returning number

grant usage on schema {schema} to {role};
grant select, insert, update, delete on all tables in schema {schema} to {role};
revoke insert, update, delete on {schema}.perdure_schema from {role};
grant usage, select on all sequences in schema {schema} to {role};
grant execute on all functions in schema {schema} to {role};

revoke all on all tables in schema {schema} from {role};
revoke all on all sequences in schema {schema} from {role};
revoke all on all functions in schema {schema} from {role};
grant usage on schema {schema} to {role};
grant execute on function {schema}.start_v2, {schema}.emit_v2 to {role};

-- Emissions in callers' own transactions.

-- Insert a message, its EMITTED and a run with its first audit row for each handler, all as text, in the transaction of
-- somebody whose settings are not known. What it comes to is returned, since an error would be the end of that
-- transaction: as of start_v1, or changed: the book of handlers has another version than the caller went by.
create function emit_v1(
    engine text, began text, book bigint, runs text[], notes text[], message text, emission text
) returns text language plpgsql set search_path from current as $$
declare
    w writes_v1;
    m message_v1;
    e message_event_v1;
    written bigint;
begin
    if extract(epoch from transaction_timestamp())::text <> began then
        return 'detached';
    end if;
    if current_setting('transaction_read_only')::boolean then
        return 'read-only';
    end if;
    if not exists (select 1 from engines where id = engine) then
        return 'foreign';
    end if;
    if (select version from handler_book) <> book then
        return 'changed';
    end if;
    m := message::message_v1;
    e := emission::message_event_v1;
    -- Whoever emits the same message at the same time is waited for here.
    insert into messages (id, topic, payload, created_at) values (m.id, m.topic, m.payload, m.created_at)
    on conflict (id) do nothing;
    get diagnostics written = row_count;
    if written = 0 then
        return 'taken';
    end if;
    insert into message_event (
        scope, seq, id, message_id, type, key, coroutine_name, coroutine_identifier, step, cooperation_lineage, created_at,
        exception, context, next_step, child_failure_handler_iteration
    ) values (
        e.scope, e.seq, e.id, e.message_id, e.type, e.key, e.coroutine_name, e.coroutine_identifier, e.step,
        e.cooperation_lineage, e.created_at, e.exception, e.context, e.next_step, e.child_failure_handler_iteration
    );
    if cardinality(runs) > 0 then
        perform insert_runs_v1(array(select one::new_run_v1 from unnest(runs) as one));
        w.audit := array(select one::audit_v1 from unnest(notes) as one);
        w.mail := '{}';
        perform write_rest_v1(w);
    end if;
    return 'inserted';
end
$$;

-- Starts and emissions in callers' own transactions, for users that have no right on any table.
--
-- These functions run with the rights of the schema's owner. So they take only what a caller may choose, make up the rest of the
-- rows themselves, and look for names in this schema alone: tables of the session itself (pg_temp) come last.
-- Everybody may execute a new function unless that is taken back.
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- Whether a text is an object of texts, as tags are.
create function are_tags_v1(tags text) returns boolean language plpgsql immutable set search_path from current as $$
begin
    return json_typeof(tags::json) = 'object'
        and not exists (select from json_each(tags::json) as given where json_typeof(given.value) <> 'string');
exception when invalid_text_representation or untranslatable_character then
    return false;
end
$$;

-- What speaks against writing in the caller's transaction; null if nothing does.
--   detached   the transaction is not the one that began at that time, so every statement is one of its own
--   read-only  nothing may be written in it
--   foreign    the engine that asks is not one of this schema
create function obstacle_v1(engine text, began text) returns text language sql stable set search_path from current as $$
    select case
        when extract(epoch from transaction_timestamp())::text <> began then 'detached'
        when current_setting('transaction_read_only')::boolean then 'read-only'
        when not exists (select from engines where id = engine) then 'foreign'
    end
$$;

-- A run that was just created, and that nobody has taken, with its first audit row; how many were inserted.
create function insert_created_v1(
    new_id text, new_workflow text, its_version text, its_model text, is_known boolean, parent text, its_bond text,
    its_origin text, its_tags text, its_deadline bigint, its_actor text, now bigint, its_input text
) returns bigint language plpgsql set search_path from current as $$
declare
    r new_run_v1;
    a audit_v1;
    w writes_v1;
    written bigint;
begin
    if not are_tags_v1(its_tags) then
        raise exception 'tags are a JSON object of texts' using errcode = '22023';
    end if;
    r.id := new_id;
    r.workflow := new_workflow;
    r.workflow_version := its_version;
    r.model := its_model;
    r.parent_id := parent;
    r.bond := its_bond;
    r.origin := its_origin;
    r.created_at := now;
    r.updated_at := now;
    r.status := 'created';
    r.version := 1;
    r.revision := 1;
    r.claim := case when is_known then 1 else 0 end;
    r.tags := its_tags;
    r.deadline := its_deadline;
    r.attempt := 1;
    r.recoveries := 0;
    r.undo := 0;
    r.input := its_input;
    written := insert_runs_v1(array[r]);
    if written = 1 then
        a := row(new_id, 1, 1, null, 'created', 'started', its_actor, '', now)::audit_v1;
        w.audit := array[a];
        w.mail := '{}';
        perform write_rest_v1(w);
    end if;
    return written;
end
$$;

-- Start a run. The state is what obstacle_v1 says; inserted; or taken: a run has this id. Of that run the caller learns what tells
-- whether it was started for the same: its input only if it is a run of the same workflow, from the outside, and did not continue
-- as another.
create function start_v2(
    engine text, began text, new_id text, new_workflow text, its_version text, its_model text, is_known boolean,
    its_tags text, its_deadline bigint, its_actor text, now bigint, its_input text,
    out state text, out workflow text, out origin text, out input text
) language plpgsql security definer set search_path from current as $$
begin
    state := obstacle_v1(engine, began);
    if state is not null then
        return;
    end if;
    if its_model not in ('function', 'graph') then
        raise exception 'a run of model % is not started', its_model using errcode = '22023';
    end if;
    if insert_created_v1(
        new_id, new_workflow, its_version, its_model, is_known, null, '', '', its_tags, its_deadline, its_actor, now, its_input
    ) = 1 then
        state := 'inserted';
        return;
    end if;
    state := 'taken';
    select
        r.workflow, r.origin,
        case when r.workflow = new_workflow and r.origin = '' and r.parent_id is null then r.input end
    into workflow, origin, input from runs as r where r.id = new_id;
end
$$;

-- Emit a message from the outside, with a run for each of its handlers. The state is as of start_v2, or changed: the book of
-- handlers has another version than the caller went by. If the message was emitted before, the scope is its root.
create function emit_v2(
    engine text, began text, book bigint, root text, event_id text, emitted_at bigint, its_context text, new_message text,
    its_topic text, its_payload text, now bigint, its_actor text, run_ids text[], names text[], tags text[], inputs text[],
    out state text, out scope text
) language plpgsql security definer set search_path from current as $$
declare
    written bigint;
    place integer;
begin
    state := obstacle_v1(engine, began);
    if state is not null then
        return;
    end if;
    if (select version from handler_book) <> book then
        state := 'changed';
        return;
    end if;
    if exists (select from runs where id = root) then
        raise exception 'a run has the id of the root' using errcode = '22023';
    end if;
    if exists (
        select from unnest(names) as wanted (name)
        where not exists (select from handlers where handlers.topic = its_topic and handlers.name = wanted.name)
    ) then
        raise exception 'nobody of this name handles the topic' using errcode = '22023';
    end if;
    -- Whoever emits the same message at the same time is waited for here.
    insert into messages (id, topic, payload, created_at) values (new_message, its_topic, its_payload, now)
    on conflict (id) do nothing;
    get diagnostics written = row_count;
    if written = 0 then
        state := 'taken';
        select e.scope into scope from message_event as e where e.message_id = new_message and e.key = 'EMITTED';
        return;
    end if;
    insert into message_event (scope, seq, id, message_id, type, key, cooperation_lineage, created_at, context)
    values (root, 1, event_id, new_message, 'EMITTED', 'EMITTED', root, emitted_at, its_context);
    for place in 1 .. coalesce(cardinality(run_ids), 0) loop
        if insert_created_v1(
            run_ids[place], names[place], its_topic, 'operation', false, root, 'awaited',
            root || '/' || run_ids[place] || ' ' || new_message, tags[place], null, its_actor, now, inputs[place]
        ) <> 1 then
            raise exception 'the id of a new run is taken' using errcode = '23505';
        end if;
    end loop;
    state := 'inserted';
end
$$;

revoke all on function start_v2 from public;
revoke all on function emit_v2 from public;

-- Users that could insert runs so far can start them from now on.
do $$
declare
    who oid;
begin
    for who in
        select distinct entry.grantee from pg_class, aclexplode(pg_class.relacl) as entry
        where pg_class.oid = 'runs'::regclass and entry.privilege_type = 'INSERT' and entry.grantee <> pg_class.relowner
    loop
        execute format(
            'grant execute on function start_v2, emit_v2 to %s', case when who = 0 then 'public' else quote_ident(pg_get_userbyid(who)) end
        );
    end loop;
end
$$;

-- Bounds on what start_v2 and emit_v2 take, as the Python API has them.
--
-- Callers may call these functions themselves, with anything. A time that no calendar has would break lists for everybody, a
-- message with one handler twice would be handled twice, and a row of a gigabyte would be read by every engine.
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- Raise an exception unless something holds. What is not known does not.
create function require_v1(holds boolean, otherwise text) returns void language plpgsql immutable set search_path from current as $$
begin
    if holds is not true then
        raise exception '%', otherwise using errcode = '22023';
    end if;
end
$$;

-- Whether a text can be an id or a name.
create function is_name_v1(given text) returns boolean language sql immutable set search_path from current as $$
    select char_length(given) between 1 and 500
$$;

-- Whether a time of a caller is one of now: within a day of the server's clock. Clocks of machines differ, but not by that.
create function is_now_v1(given bigint) returns boolean language sql stable set search_path from current as $$
    select abs(given - (extract(epoch from clock_timestamp()) * 1000000)::bigint) <= 86400000000
$$;

-- Whether tags have keys and values that others can have too. They were looked at by are_tags_v1 before.
create function are_short_tags_v1(tags text) returns boolean language sql immutable set search_path from current as $$
    select octet_length(tags) <= 1048576 and not exists (
        select from json_each_text(tags::json) as given
        where char_length(given.key) not between 1 and 500 or char_length(given.value) not between 1 and 500
    )
$$;

-- Start a run. The state is what obstacle_v1 says; inserted; or taken: a run has this id. Of that run the caller learns what tells
-- whether it was started for the same: its input only if it is a run of the same workflow, from the outside, and did not continue
-- as another.
create or replace function start_v2(
    engine text, began text, new_id text, new_workflow text, its_version text, its_model text, is_known boolean,
    its_tags text, its_deadline bigint, its_actor text, now bigint, its_input text,
    out state text, out workflow text, out origin text, out input text
) language plpgsql security definer set search_path from current as $$
begin
    state := obstacle_v1(engine, began);
    if state is not null then
        return;
    end if;
    perform require_v1(its_model in ('function', 'graph'), 'only runs of functions and of graphs are started');
    perform require_v1(is_name_v1(new_id) and is_name_v1(new_workflow) and is_name_v1(its_actor), 'an id or a name is too long, or empty');
    perform require_v1(char_length(its_version) <= 500, 'the version is too long');
    perform require_v1(is_now_v1(now), 'the time is not the time of now');
    -- Up to the end of the year 9999, as far as calendars go.
    perform require_v1(its_deadline is null or its_deadline between 0 and 253402300799999999, 'the deadline is no time');
    perform require_v1(are_tags_v1(its_tags) and are_short_tags_v1(its_tags), 'tags are a JSON object of short texts');
    perform require_v1(octet_length(its_input) <= 67108864, 'the input has more than 64 MiB');
    perform require_v1(is_known is not null, 'is_known is missing');
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
create or replace function emit_v2(
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
    perform require_v1(
        is_name_v1(root) and is_name_v1(event_id) and is_name_v1(new_message) and is_name_v1(its_topic)
        and char_length(its_actor) <= 500,
        'an id or a name is too long, or empty'
    );
    -- They are parts of the runs' origins, which are read by these signs.
    perform require_v1(root !~ '[/ ]', 'a root has no slash and no space in its id');
    perform require_v1(is_now_v1(now) and is_now_v1(emitted_at), 'the time is not the time of now');
    perform require_v1(octet_length(its_payload) <= 67108864, 'the message has more than 64 MiB');
    perform require_v1(its_context is null or octet_length(its_context) <= 1048576, 'the context has more than 1 MiB');
    perform require_v1(
        coalesce(cardinality(run_ids), 0) <= 10000
        and coalesce(cardinality(names), 0) = coalesce(cardinality(run_ids), 0)
        and coalesce(cardinality(tags), 0) = coalesce(cardinality(run_ids), 0)
        and coalesce(cardinality(inputs), 0) = coalesce(cardinality(run_ids), 0),
        'runs, names, tags and inputs are not as many as each other, or more than 10000'
    );
    perform require_v1(
        not exists (select from unnest(names) as given (name) group by given.name having count(*) > 1), 'a handler is named twice'
    );
    perform require_v1(
        not exists (
            select from unnest(run_ids, tags, inputs) as given (run_id, its_tags, input)
            where is_name_v1(given.run_id) is not true or given.run_id ~ '[/ ]' or are_tags_v1(given.its_tags) is not true
                or are_short_tags_v1(given.its_tags) is not true or (octet_length(given.input) <= 67108864) is not true
        ),
        'a run has an id, tags or an input that no run can have'
    );
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

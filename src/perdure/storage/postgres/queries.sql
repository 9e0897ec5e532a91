-- The queries of the Postgres store. A comment with its name starts a query. A name in braces stands for the text of
-- that query, and a name after a colon for a parameter. The statements of a commit are in functions: see migrations.

-- name: run_columns
-- A run without payloads, in the order of the fields of kernel.runs.Run.
runs.id, runs.workflow, runs.workflow_version, runs.model, runs.status, runs.version, runs.revision, runs.owner,
runs.claim, runs.parent_id, runs.bond, runs.consumed, runs.undo, runs.origin, runs.tags, runs.hold, runs.deadline,
runs.attempt, runs.recoveries, runs.created_at, runs.started_at, runs.updated_at, runs.completed_at,
case when runs.hold_kind is null then coalesce(runs.hold_fingerprint, '') else '' end

-- name: lacking
-- The tables that a schema needs and that are missing, or that this user may not use.
select name, to_regclass(format('%I.%I', :schema::text, name)) is not null as is_there
from unnest(:tables::text[]) as wanted (name)
where to_regclass(format('%I.%I', :schema::text, name)) is null
    or exists (
        select 1 from unnest(array['select', 'insert', 'update', 'delete']) as wanted_right (kind)
        where not has_table_privilege(to_regclass(format('%I.%I', :schema::text, name)), kind)
            and (name <> 'perdure_schema' or kind = 'select')
    )
order by name

-- name: types
-- Composite types and their arrays, in the form that the driver expects. The driver's own query reads the whole catalog
-- several times. In a large database this takes a second, on each connection that uses a type for the first time.
with recursive parts as (
    select given.oid, 0 as depth from unnest(:oids::oid[]) as given (oid)
    union all
    select part.oid, parts.depth + 1
    from parts
    join pg_catalog.pg_type as whole on whole.oid = parts.oid
    cross join lateral (
        select whole.typelem as oid where whole.typelem <> 0 and whole.typlen = -1
        union all
        select whole.typbasetype where whole.typbasetype <> 0
        union all
        select field.atttypid from pg_catalog.pg_attribute as field
        where field.attrelid = whole.typrelid and field.attnum > 0 and not field.attisdropped and whole.typrelid <> 0
    ) as part
),
deepest as (select oid, max(depth) as depth from parts group by oid)
select
    found.oid, space.nspname as ns, found.typname as name, found.typtype as kind,
    case when found.typtype = 'd' then found.typbasetype end as basetype,
    case when found.typlen = -1 then found.typelem else 0 end as elemtype, element.typdelim as elemdelim,
    null::oid as range_subtype,
    case when found.typtype = 'c' then fields.types end as attrtypoids,
    case when found.typtype = 'c' then fields.names end as attrnames,
    deepest.depth,
    case when found.typtype = 'd' then found.typbasetype::regtype::text end as basetype_name,
    found.typelem::regtype::text as elemtype_name, null::text as range_subtype_name
from deepest
join pg_catalog.pg_type as found on found.oid = deepest.oid
join pg_catalog.pg_namespace as space on space.oid = found.typnamespace
left join pg_catalog.pg_type as element on element.oid = found.typelem and found.typlen = -1 and found.typelem <> 0
left join lateral (
    select
        array_agg(field.atttypid order by field.attnum) as types,
        array_agg(field.attname::text order by field.attnum) as names
    from pg_catalog.pg_attribute as field
    where field.attrelid = found.typrelid and field.attnum > 0 and not field.attisdropped and found.typrelid <> 0
) as fields on true
order by deepest.depth desc

-- name: active
-- The condition of the index runs_active.
runs.status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back')

-- name: found_active
-- Active runs, for a query that finds its runs in another way. With this form of the condition, no query plan begins
-- with all active runs.
(runs.status || '') in ('created', 'running', 'suspended', 'cancelling', 'rolling_back')

-- name: awake
-- The condition of the index runs_awake.
runs.status in ('created', 'running', 'cancelling', 'rolling_back')

-- name: forsaken
-- The run has no living owner.
(runs.owner is null or not exists (select 1 from engines where engines.id = runs.owner and engines.alive))

-- name: offers
-- The code that an engine offers. Each code has one row for every version that its runs may have been stored with.
unnest(
    :workflows::text[], :versions::text[], :stored_versions::text[], :fingerprints::text[], :models::text[],
    :or_models::text[], :begun::boolean[]
) as offer (workflow, version, stored_version, fingerprint, model, or_model, begun)

-- name: known_model
-- A run's model. It is '' if only the code of the run's workflow knows it: see Run.known_model.
case when runs.model <> 'operation' and (
    (runs.model = 'function' and runs.claim = 0)
    or (runs.origin <> '' and (runs.bond <> 'called' or position(' #' in runs.origin) > 0))
) then '' else runs.model end

-- name: fits
-- A run belongs to the offered code. The version of an operation is the topic of its message. Earlier versions of
-- Perdure did not store it with the run. Code may be offered only for runs that have begun, or only for runs that have
-- not begun. A run has begun if it has a row with the number 1.
runs.workflow = offer.workflow and runs.workflow_version = offer.stored_version
    and {known_model} in (offer.model, offer.or_model)
    and (
        offer.stored_version = offer.version
        or offer.version = (
            select topic from messages where messages.id = substr(runs.origin, position(' ' in runs.origin) + 1)
        )
    )
    and (
        offer.begun is null
        or offer.begun = ((select 1 from message_event where scope = runs.id and seq = 1) is not null)
    )

-- name: offered
-- Runs that fit an engine's offers.
exists (select 1 from {offers} where {fits})

-- name: event_columns
-- An event, in the order of the fields of kernel.events.Event.
events.id, events.name, events.value, events.fields, events.run_id, events.shared, events.consumed, events.position,
events.option, events.number, events.expires_at, events.fallback, events.key, events.actor, events.at

-- name: wait_columns
-- A wait, in the order of the fields of kernel.rows.Wait; its filter has the shape in it.
waits.run_id, waits.position, waits.option, waits.kind, waits.name, waits.filter, waits.mode, waits.target,
waits.number, waits.due_at, waits.attempts, waits.failure, waits.since, waits.details

-- name: engine_columns
engines.id, engines.epoch, engines.alive, engines.batch, engines.host, engines.pid, engines.workflows, engines.started_at

-- name: enroll
-- Register an engine with the next epoch, together with its first sign of life. So nobody sees the engine without it.
with enrolled as (
    insert into engines (id, epoch, alive, batch, host, pid, workflows, started_at)
    values (:id, nextval('epochs'), true, 0, :host, :pid, :workflows, :started_at)
    returning *
), sign as (
    insert into heartbeats (engine_id, beat_at, lease) values (:id, clock_timestamp(), :lease)
    on conflict (engine_id) do update set beat_at = excluded.beat_at, lease = excluded.lease
)
select {engine_columns} from enrolled as engines

-- name: server_time
-- Microseconds since the epoch, by the server's clock.
(extract(epoch from clock_timestamp()) * 1000000)::bigint

-- name: time
select {server_time}

-- name: beat
-- Renew the signs of life of this store's engines, and return their last batches. An engine that was marked dead has
-- no sign of life to renew.
with renewed as (
    update heartbeats set beat_at = clock_timestamp() where engine_id = any(:ids::text[]) returning engine_id
)
select engines.id, engines.batch, {server_time} from renewed join engines on engines.id = renewed.engine_id

-- name: end_beats
-- Delete signs of life.
delete from heartbeats where engine_id = any(:ids::text[])

-- name: engines
select {engine_columns} from engines order by epoch

-- name: living_engines
select {engine_columns} from engines where alive order by epoch

-- name: is_needless
-- A dead engine that can be forgotten. It owns nothing, and a later engine has the same code. So an engine that looks
-- for overdue runs still knows all code that engines have had.
not old.alive and (
    old.workflows = '[]'
    or exists (
        select 1 from engines as later
        where md5(later.workflows) = md5(old.workflows) and later.workflows = old.workflows and later.epoch > old.epoch
    )
)
and not exists (select 1 from runs where {active} and runs.owner = old.id)

-- name: forget_engine
-- Forget an engine that has signed off, if it is not needed.
delete from engines where id in (select old.id from engines as old where old.id = :id and {is_needless})

-- name: note_ended
-- Note when dead engines were first found dead. They are kept for a while from then on.
update engines set ended_at = :at
where id = any(array(
    select id from engines where not alive and ended_at is null limit :limit for update skip locked
))

-- name: purge_engines
with gone as (
    delete from engines where id = any(array(
        select old.id from engines as old where not old.alive and old.ended_at < :before and {is_needless}
        limit :limit for update skip locked
    ))
    returning 1
)
select count(*) from gone

-- name: engine
select {engine_columns} from engines where id = :id

-- name: fence
-- Lock the engine's row until the end of the transaction. Another engine that marks this engine dead waits for the
-- lock.
select {engine_columns} from engines where id = :id for key share

-- name: retire
-- Mark an engine dead and give up its runs. Only active runs have an owner.
with gone as (update engines set alive = false where id = :id), sign as (delete from heartbeats where engine_id = :id)
update runs set owner = null where {active} and owner = :id

-- name: mark_dead_engines
select bury_v1()

-- name: end_dead_steps
-- End the step transactions of dead engines. Otherwise these transactions would keep their locks.
select end_dead_steps_v1()

-- name: end_step
-- End the transaction of a step whose connection was lost.
select end_step_v1(:run, :claim, :position)

-- name: is_step_open
select is_step_open_v1(:run, :claim, :position, :silence::interval)

-- name: cut_off
-- End sessions of Perdure that are idle in the middle of a request and so keep their locks. Their processes are stopped
-- between two messages of the request. The server has no timeout for this case.
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and usename = current_user and state = 'active' and wait_event = 'ClientRead'
    and application_name in ('perdure writer', 'perdure reader') and state_change < clock_timestamp() - :silence::interval

-- name: commit_call
-- The entries come last. Engines of an earlier Perdure have them among the writes, without digests.
write_journal_v1(
    commit_v1(
        :engine, :epoch, :number, :ended, :cleared, :dropped, :put,
        row(
            :new_runs::new_run_v1[], :changed_runs::changed_run_v1[], :archive::archive_v1[], :continued::text[],
            '{}'::entry_v1[], :consumed::text[], :audit::audit_v1[], :mail::mail_v1[], :mail_done::reply_v1[],
            :published::published_v1[], :stream_items::stream_item_v1[]
        )::writes_v1
    ),
    :journal::entry_v2[]
)

-- name: commit
select {commit_call}

-- name: artifacts_and_tasks
-- The batch's changes to artifacts and tasks.
row(
    :artifacts_at::bigint, :chunks::chunk_v1[], :chunks_gone::text[], :artifacts::artifact_v1[], :archive::archive_v1[],
    :continued::text[], :fates::fate_v1[], :tasks::task_v1[], :answers::task_answer_v1[], :withdrawn::text[]
)::stock_v1

-- name: commit_with_artifacts
select write_stock_v1({commit_call}, {artifacts_and_tasks})

-- name: finish_artifacts
-- The last part of a batch that needed matching.
select write_stock_v1(0, {artifacts_and_tasks})

-- name: cooperation
-- The rows that a batch adds to messages and their events.
row(
    :cooperation_at::bigint, :book::bigint, :messages::message_v1[], :message_events::message_event_v1[],
    :return_values::return_value_v1[], :seen::handler_v1[]
)::cooperation_v1

-- name: commit_with_cooperation
select write_cooperation_v1({commit_call}, {cooperation})

-- name: commit_with_all
select write_cooperation_v1(write_stock_v1({commit_call}, {artifacts_and_tasks}), {cooperation})

-- name: finish_cooperation
-- The last part of a batch that needed matching.
select write_cooperation_v1(0, {cooperation})

-- name: prepare
select state, base from prepare_v1(
    :engine, :epoch, :number, :at, :numbered, :names_sent, :names_awaited, :spread, :changed, :guards, :keys, :targets,
    :cleared, :forgotten, :dropped, :read, :put
)

-- name: finish
select finish_journal_v1(
    finish_v1(
        :engine, :knocks, :keys_refused, :letters_gone, :given, :gone, :freed, :moved, :placed, :dead, :far, :marks, :won,
        row(
            :new_runs::new_run_v1[], :changed_runs::changed_run_v1[], :archive::archive_v1[], :continued::text[],
            '{}'::entry_v1[], :consumed::text[], :audit::audit_v1[], :mail::mail_v1[], :mail_done::reply_v1[],
            :published::published_v1[], :stream_items::stream_item_v1[]
        )::writes_v1
    ),
    :journal::entry_v2[]
)

-- name: surroundings
-- Check a connection about which nothing is known. The result says when its transaction began, whether runs can be
-- started in the schema, and whether this user may do that. The query never fails.
select
    extract(epoch from transaction_timestamp())::text,
    exists (
        select 1 from pg_proc join pg_namespace on pg_namespace.oid = pg_proc.pronamespace
        where pg_namespace.nspname = :schema and pg_proc.proname = :function
    ),
    (
        select coalesce(bool_and(has_schema_privilege(pg_namespace.oid, 'usage')), false)
        from pg_namespace where pg_namespace.nspname = :schema
    )
    and (
        select coalesce(bool_and(has_function_privilege(pg_proc.oid, 'execute')), false)
        from pg_proc join pg_namespace on pg_namespace.oid = pg_proc.pronamespace
        where pg_namespace.nspname = :schema and pg_proc.proname = :function
    )

-- name: start
-- Insert a run in a caller's transaction.
select state, workflow, origin, input from start_v2(
    :engine, :began, :id, :workflow, :version, :model, :is_known, :tags, :deadline::bigint, :actor, :at::bigint, :input
)

-- name: emit
-- Insert a message and its runs in a caller's transaction.
select state, scope from emit_v2(
    :engine, :began, :book::bigint, :root, :event_id, :emitted_at::bigint, :context, :message, :topic, :payload,
    :at::bigint, :actor, :run_ids::text[], :names::text[], :tags::text[], :inputs::text[]
)

-- name: there
-- Of these runs, those that are committed.
select id from runs where id = any(:ids::text[])

-- name: expectations
-- The columns that show whether runs are as a batch expects them.
select id, owner, version, claim from runs where id = any(:ids::text[])

-- name: revisions
-- How many audit rows runs have. It also shows changes that leave the version as it is.
select id, revision from runs where id = any(:ids::text[])

-- name: freed
-- The events that have won one of these positions, or any position of these runs. Also all events of the runs that have
-- ended. With this form of the condition, no query plan begins with all events that have won nothing.
select {event_columns} from unnest(:run_ids::text[], :positions::text[]) as given (run_id, position)
join events on events.run_id = given.run_id and events.position = given.position
where events.position is not null
union all
select {event_columns} from events where position is not null and run_id = any(:ids::text[])
union all
select {event_columns} from events where run_id = any(:cleared::text[]) and (position || '') is null

-- name: queue
-- The events in the queue of a name.
select {event_columns} from events
where run_id is null and name = :name and number > :after and expires_at > :at order by number limit :limit

-- name: shapes
-- The sets of fields by which waits for a name filter. The query steps from set to set through the index.
with recursive shapes as (
    (
        select shape from waits where name = :name and kind = 'event' and due_at is null order by shape limit 1
    )
    union all
    select (
        select waits.shape from waits
        where name = :name and kind = 'event' and due_at is null and waits.shape > shapes.shape
        order by waits.shape limit 1
    )
    from shapes where shapes.shape is not null
)
select shape from shapes where shape is not null

-- name: waiting
-- Waits for a name with exactly this filter, the longest waiting first.
select {wait_columns} from waits
where kind = 'event' and due_at is null and name = :name and shape = :shape
    and hashtextextended(filter, 0) = hashtextextended(:filter::text collate "C", 0) and filter = :filter::text
    and number > :after and number < :before
order by number limit :limit

-- name: pending
-- How many events are in the queue of a name and have not expired, up to a limit.
select count(*) from (
    select 1 from events where run_id is null and name = :name and consumed and expires_at > :at limit :limit
) as pending

-- name: has_read
-- Those of these retained events that a run has read or was given.
select event_id from event_reads where run_id = :run_id and event_id = any(:ids::text[])
union select id from events where run_id is not null and run_id = :run_id and not consumed and id = any(:ids::text[])

-- name: readers
-- Of these runs, those that have read a retained event or were given it.
select run_id from event_reads where event_id = :event_id and run_id = any(:ids::text[])
union select run_id from events where run_id is not null and run_id = any(:ids::text[]) and id = :event_id

-- name: born
-- The value of the sequence when a run was created.
select born from runs where id = :run_id

-- name: still_active
-- Of these runs, those that have not ended.
select runs.id from runs where runs.id = any(:ids::text[]) and {active}

-- name: awaiting
-- Waits for the ends of these runs.
select {wait_columns} from waits where target is not null and due_at is null and target = any(:ids::text[])
order by run_id, position, option

-- name: kept
-- A retained event that is being delivered, and how far it has been delivered.
select {event_columns}, events.reached from events where reached is not null and id = :id

-- name: spreading
select id from events where reached is not null order by number

-- name: events
-- Events that were sent or given to runs.
select {event_columns} from events
where run_id is not null and run_id = any(:ids::text[]) order by run_id, number

-- name: queued_events
-- Events that any run may get.
select {event_columns} from events
where run_id is null and (:name::text is null or name = :name::text) order by number limit :limit

-- name: letters
select id, name, value, fields, run_id, status, ended_at, consumed, at from dead_letters
where (:name::text is null or name = :name::text) and (:after::text is null or id > :after::text) order by id limit :limit

-- name: letter
select id, name, value, fields, run_id, status, ended_at, consumed, at from dead_letters where id = :id

-- name: sent
select key, event_id from event_keys where key = any(:ids::text[])

-- name: purge_events
-- Delete expired events, except events that have won a wait and events that are still being delivered. Also forget
-- which runs have read the deleted events.
with gone as (
    delete from events where ctid = any(array(
        select ctid from events where position is null and expires_at <= :at and reached is null
        limit :limit for update skip locked
    ))
    returning id, run_id is null and not consumed as is_retained
), reads as (
    delete from event_reads using gone where gone.is_retained and event_reads.event_id = gone.id
)
select count(*) from gone

-- name: purge_keys
with gone as (
    delete from event_keys where key in (
        select key from event_keys where at < :before limit :limit for update skip locked
    )
    returning 1
)
select count(*) from gone

-- name: children
-- Active children that are not detached.
select runs.id from runs
where runs.parent_id is not null and runs.parent_id = any(:ids::text[]) and {found_active} and runs.bond <> 'detached' order by runs.created_at, runs.id

-- name: stopped_children
-- Active children that are not detached, and children that were cancelled or rolled back.
select runs.id from runs
where runs.parent_id is not null and runs.parent_id = any(:ids::text[]) and (runs.status || '') not in ('succeeded', 'failed')
and runs.bond <> 'detached' order by runs.created_at, runs.id

-- name: is_stray
-- The run of a wait is suspended, fits an offer, and has no living owner. Runs are checked one by one, in the
-- order of the waits.
(
    select (runs.status || '') = 'suspended' and runs.hold_kind is null and {offered} and {forsaken}
    from runs where runs.id = waits.run_id
)

-- name: ripe_waits
-- Suspended runs that fit an offer, have no living owner and are due before a time, the earliest first. A run is
-- listed once for each of its waits.
select waits.run_id, waits.due_at from waits
where waits.due_at is not null and waits.due_at < :before and {is_stray}
order by waits.due_at limit :limit offset :offset

-- name: is_held_alive
-- A held run that its deadline can end.
(runs.model = 'operation' or (runs.status || '') in ('created', 'running', 'suspended'))

-- name: is_due
-- A run that its deadline can end. Ending a held run needs no code.
case when runs.hold_kind is null then {offered} else {is_held_alive} end and {forsaken}

-- name: ripe_deadlines
-- Runs whose deadline is due before a time. Held runs are listed too, if their deadline can end them. These are runs
-- that do not roll back, and all runs of operations.
select runs.id, runs.deadline from runs
where runs.deadline is not null and {active} and runs.deadline < :before
    and {is_due}
order by runs.deadline limit :limit

-- name: all_owners
-- All owners of active runs. The query steps from owner to owner through the index, and does not read every run.
recursive owners as (
    (
        select runs.owner from runs where {active} and runs.owner is not null order by runs.owner limit 1
    )
    union all
    select (
        select runs.owner from runs where {active} and runs.owner > owners.owner order by runs.owner limit 1
    )
    from owners where owners.owner is not null
)

-- name: is_dead
-- An owner that is not a living engine.
not exists (select 1 from engines where engines.id = owners.owner and engines.alive)

-- name: owners
with {all_owners}
select owner from owners where owner is not null and {is_dead}

-- name: claimable
-- The oldest runs without an owner. Suspended and held runs are left out. The query reads a short part of the index for
-- each offer, so all columns of the index are in the order. Runs that another engine is just claiming are skipped.
select found.created_at, found.id, false as is_orphaned
from {offers}
cross join lateral (
    select runs.created_at, runs.id from runs
    where {awake} and runs.owner is null and {fits} and runs.hold_kind is null
    order by runs.owner, runs.workflow, runs.workflow_version, runs.created_at, runs.id
    limit :limit for update skip locked
) as found

-- name: claimable_orphans
-- The same for the runs of these owners.
select found.created_at, found.id, true as is_orphaned
from unnest(:owners::text[]) as dead (owner)
cross join {offers}
cross join lateral (
    select runs.created_at, runs.id from runs
    where {awake} and runs.owner = dead.owner and {fits} and runs.hold_kind is null
    order by runs.created_at, runs.id limit :limit for update skip locked
) as found

-- name: blocked
-- A blocked run that has no living owner and was tried only with other code than the offered code: see
-- kernel/fingerprints.py. An offer without a fingerprint counts as other code.
runs.hold_kind is not null and runs.hold_kind = 'blocked' and {found_active} and {forsaken} and exists (
    select 1 from {offers} where {fits} and runs.hold_fingerprint <> ''
        and position(' ' || offer.fingerprint || ' ' in ' ' || runs.hold_fingerprint || ' ') = 0
)

-- name: claimable_blocked
-- Blocked runs that other code may fit.
select runs.created_at, runs.id, runs.owner is not null as is_orphaned from runs where {blocked}
order by runs.created_at, runs.id limit :limit for update of runs skip locked

-- name: take_over
-- Give runs to an engine.
update runs set owner = :owner, claim = claim + 1 where id = any(:ids::text[])

-- name: put_models
-- The models of runs, once they are known.
update runs set model = new.model
from unnest(:ids::text[], :models::text[]) as new (id, model) where runs.id = new.id

-- name: runs
-- Runs by id, and whether each has no living owner.
select {run_columns}, runs.owner is not null and {forsaken} from runs where runs.id = any(:ids::text[])

-- name: set_aside
-- Hold a damaged run.
with held as (
    update runs set
        owner = null, hold_kind = :kind, hold_fingerprint = '', hold = :hold, revision = runs.revision + 1
    where runs.id = :run_id and runs.hold_kind is null and (runs.owner = :engine_id or {forsaken})
    returning runs.id, runs.revision, runs.version, runs.status
), audited as (
    insert into audit (run_id, seq, version, was, became, cause, actor, details, at)
    select id, revision, version, status, :kind, :reason, '', '', :at from held
    on conflict do nothing
)
select 1 from held

-- name: waits
-- The waits of runs.
select {wait_columns} from waits where run_id = any(:ids::text[]) order by run_id, position, option

-- name: staged
-- Staged results of runs, in the order of the fields of kernel.rows.Staged.
select run_id, position, name, claim, attempt, value, started_at, at from staged
where run_id = any(:ids::text[]) order by run_id, position

-- name: stored_runs
-- Runs by id, with payloads.
select {run_columns}, runs.input, runs.output, runs.failure from runs where runs.id = any(:ids::text[])

-- name: inputs
-- Runs' inputs.
select id, input from runs where id = any(:ids::text[])

-- name: journals
-- Runs' entries in completion order.
select run_id, seq, position, kind, name, value, failure, attempts, started_at, at, digest
from journal where run_id = any(:ids::text[]) order by run_id, seq

-- name: archived
-- Entries that retries have archived. The first column is the attempt.
select attempt, run_id, seq, position, kind, name, value, failure, attempts, started_at, at, digest
from journal_archive where run_id = :run_id order by attempt, seq

-- name: audit
-- A run's audit rows, oldest first.
select run_id, seq, version, was, became, cause, actor, details, at from audit where run_id = :run_id order by seq

-- name: audits
-- The audit rows of several runs.
select run_id, seq, version, was, became, cause, actor, details, at from audit
where run_id = any(:ids::text[]) order by run_id, seq

-- name: changed_runs
-- Runs that may have audit rows from a time on, by id. Holding a damaged run is audited, but leaves the run's time as
-- it was.
select id, workflow from runs
where id > :after::text and (updated_at >= :since::bigint or hold_kind is not null)
order by id limit :limit

-- name: status
select status from runs where id = :run_id

-- name: published
-- Values that a run has published, under one key or under all keys. The columns have the order of the fields of
-- kernel.rows.PublishedValue.
select run_id, key, value, at from published
where run_id = :run_id and (:key::text is null or key = :key::text) order by key

-- name: stream
-- Items of a stream, in the order of the fields of kernel.rows.StreamItem. A page ends with the item that makes it
-- too large.
select run_id, stream, "offset", value, at, position, attempt from (
    select *, sum(length(value)) over (order by "offset" rows between unbounded preceding and 1 preceding) as before from (
        select * from stream_items
        where run_id = :run_id and stream = :stream and "offset" > :after order by "offset" limit :limit
    ) as page
) as measured
where before is null or before < :chars_max order by "offset"

-- name: streams
-- The names of a run's streams, and their lengths. The query steps from name to name through the key, and reads no
-- items.
with recursive names (stream) as (
    select min(stream) from stream_items where run_id = :run_id
    union all
    select (select min(s.stream) from stream_items as s where s.run_id = :run_id and s.stream > names.stream)
    from names where names.stream is not null
)
select
    names.stream,
    (select max(s."offset") from stream_items as s where s.run_id = :run_id and s.stream = names.stream)
from names where names.stream is not null order by names.stream

-- name: post
-- Store a mail, unless its slot shows that it was stored before. Returns 0 in that case.
select post_v1(array[row(:run_id, :sender, :slot, :op, :at)::mail_v1])

-- name: addressed
-- Mail that an engine may answer, joined with its run if the run exists. Mail is consumed soon, so the query begins
-- with the mail and not with the runs.
from mail left join runs on runs.id = mail.run_id where (runs.owner = :engine_id or {forsaken})

-- name: mail
-- Mail that an engine may answer, oldest first.
select mail.id, mail.run_id, mail.sender, coalesce(mail.slot, ''), mail.op, mail.at {addressed} order by mail.id limit :limit

-- name: look
-- Whether there is mail for an engine, an engine without a sign of life, a run that could go on, a blocked run that
-- code may fit.
select
    exists (select 1 {addressed}),
    exists (
        select 1 from engines left join heartbeats on heartbeats.engine_id = engines.id
        where engines.alive and (beat_at is null or beat_at + lease < clock_timestamp())
    ),
    exists (
        select 1 from {offers}
        cross join lateral (
            select 1 from runs where {awake} and runs.owner is null and {fits} and runs.hold_kind is null limit 1
        ) as found
    )
    or exists (
        with {all_owners}
        select 1 from owners cross join {offers}
        cross join lateral (
            select 1 from runs where {awake} and runs.owner = owners.owner and {fits} and runs.hold_kind is null limit 1
        ) as found
        where owners.owner is not null and {is_dead}
    )
    or exists (
        select 1 from waits where waits.due_at is not null and waits.due_at <= :at and {is_stray}
    )
    or exists (
        select 1 from runs
        where runs.deadline is not null and {active} and runs.deadline <= :at and {is_due}
    ),
    exists (select 1 from runs where {blocked})

-- name: replies
-- The replies in these slots.
select slot, reply from mail_replies where slot = any(:slots::text[])

-- name: delete_replies
-- Empty the slots.
delete from mail_replies where slot = any(:slots::text[])

-- name: purge_replies
-- Delete replies that nobody has read.
with gone as (
    delete from mail_replies where slot in (
        select slot from mail_replies where at < :before limit :limit for update skip locked
    )
    returning 1
)
select count(*) from gone

-- name: mail_there
-- Of these mails, those that still exist.
select id from mail where id = any(:ids::bigint[])

-- name: filters
-- The conditions of a RunFilter except the cursor. Null means that the condition was not given.
(:workflow::text is null or runs.workflow = :workflow::text)
and (:statuses::text[] is null or runs.status = any(:statuses::text[]))
and (:hold::text is null or runs.hold_kind = :hold::text)
and (:parent_id::text is null or runs.parent_id = :parent_id::text)
and (:tags::text is null or runs.tags::jsonb @> :tags::text::jsonb)

-- name: window
-- Runs from the cursor on, in the order of every index for listings.
runs.created_at >= :created_from and (runs.created_at, runs.id) < (:before_at, :before_id)

-- name: by_parent
-- The parts of listings that find runs. A listing is one of these with the filters, once for each status.
from runs where runs.parent_id = :parent_id::text and {window}

-- name: by_hold
from runs where runs.hold_kind = :hold::text and {window}

-- name: by_tag
-- One tag finds the runs. The filters check the other tags.
from run_tags as found join runs on runs.id = found.run_id
where found.key = :tag_key and found.value = :tag_value and found.created_at >= :created_from
    and (found.created_at, found.run_id) < (:before_at, :before_id)

-- name: by_workflow
from runs where runs.workflow = :workflow::text and runs.status = :status::text and {window}

-- name: by_status
from runs where runs.status = :status::text and {window}

-- name: tally
-- How many runs have a status and were created between two times, up to a limit for each status. Reads the index only.
select found.count
from unnest(:statuses::text[], :begins::bigint[], :ends::bigint[]) with ordinality as cell (status, begins, ends, number)
cross join lateral (
    select count(*) as count from (
        select 1 from runs
        where runs.status = cell.status and runs.created_at >= cell.begins and runs.created_at < cell.ends
        limit :limit
    ) as bounded
) as found
order by cell.number

-- name: newest
order by created_at desc, id desc limit :limit

-- name: newest_by_tag
order by found.created_at desc, found.run_id desc limit :limit

-- name: hint
-- Notify these engines and the owners of these runs that they may have work. If a run has no owner, notify all engines.
select pg_notify(:channel, who) from (
    select case when octet_length(runs.owner) < 4000 then runs.owner else '*' end as who
    from unnest(:run_ids::text[]) as wanted (id) left join runs on runs.id = wanted.id
    union select unnest(:engine_ids::text[])
) as addressed

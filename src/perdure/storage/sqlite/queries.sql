-- The queries of the SQLite store. A comment with its name starts a query. A name in braces stands for the text of that
-- query. A query that takes many rows has one group of question marks, which is repeated (see queries.py). Pairs are
-- looked up in a select from a list, and not in the list itself. Otherwise SQLite would not use an index, but read the
-- whole table.

-- name: run_columns
-- A run without payloads, in the order of the fields of kernel.runs.Run.
runs.id, runs.workflow, runs.workflow_version, runs.model, runs.status, runs.version, runs.revision, runs.owner,
runs.claim, runs.parent_id, runs.bond, runs.consumed, runs.undo, runs.origin, runs.tags, runs.hold, runs.deadline, runs.attempt, runs.recoveries,
runs.created_at, runs.started_at, runs.updated_at, runs.completed_at,
case when runs.hold_kind is null and typeof(runs.hold_fingerprint) = 'text' then runs.hold_fingerprint else '' end

-- name: active
-- The condition of the index runs_active, word for word, so that SQLite can use it.
(
    runs.status = 'created' or runs.status = 'running' or runs.status = 'suspended' or runs.status = 'cancelling'
    or runs.status = 'rolling_back'
)

-- name: awake
-- The condition of the index runs_awake, word for word.
(runs.status = 'created' or runs.status = 'running' or runs.status = 'cancelling' or runs.status = 'rolling_back')

-- name: given_ids
-- A JSON list of ids as rows. A list of question marks would exceed SQLite's limit on variables.
(select value from json_each(:ids))

-- name: enroll
-- Register an engine with the next epoch.
insert into engines (id, epoch, alive, batch, host, pid, workflows, started_at)
select :id, coalesce(max(epoch), 0) + 1, 1, 0, :host, :pid, :workflows, :started_at from engines
where typeof(epoch) = 'integer' and epoch < 4611686018427387904

-- name: engines
-- All engines, by epoch.
select id, epoch, alive, batch, host, pid, workflows, started_at from engines order by epoch

-- name: living_engines
select id, epoch, alive, batch, host, pid, workflows, started_at from engines indexed by engines_living
where alive order by epoch

-- name: newest_engines
-- The engines that enrolled last, and the last batch of each.
select epoch, id, batch from engines where typeof(epoch) = 'integer' order by epoch desc limit :limit

-- name: is_needless
-- A dead engine that can be forgotten. It owns nothing, it is not the last engine that registered, and a later engine
-- has the same code. So an engine that looks for overdue runs still knows all code that engines have had.
not old.alive and old.epoch < (select max(epoch) from engines where typeof(epoch) = 'integer')
and (
    old.workflows = '[]'
    or exists (
        select 1 from engines as later indexed by engines_code
        where later.workflows = old.workflows and later.epoch > old.epoch
    )
)
and not exists (select 1 from runs indexed by runs_active where {active} and runs.owner = old.id)

-- name: sign_off
-- A time at which no engine can have ended. It marks engines that have signed off. Engines that died have another time.
update engines set ended_at = 0 where id = :id and not alive

-- name: forget_signed_off
-- The engine that registered last stays until another engine has signed off.
delete from engines where epoch in (
    select old.epoch from engines as old indexed by engines_ended
    where not old.alive and old.ended_at = 0 and {is_needless} limit :limit
)

-- name: note_ended
-- Note when dead engines were first found dead. They are kept for a while from then on.
update engines set ended_at = :at
where id in (select id from engines indexed by engines_ended where not alive and ended_at is null limit :limit)

-- name: needless_engines
-- Engines that can be forgotten. Ids are read as bytes, because a damaged id cannot be read as text.
select old.epoch, cast(old.id as blob) from engines as old indexed by engines_ended
where not old.alive and old.ended_at < :before and {is_needless} limit :limit

-- name: purge_engines
delete from engines where epoch in {given_ids}

-- name: engine
-- One engine.
select id, epoch, alive, batch, host, pid, workflows, started_at from engines where id = :id

-- name: living
-- Engines that are not marked dead. A row whose id is not text is damaged. It is left out, because it owns nothing.
select id from engines where alive and typeof(id) = 'text'

-- name: mark_dead
-- Mark an engine dead: it can never write again.
update engines set alive = 0 where id = :id and alive

-- name: release
-- Give up all runs of an engine. Only active runs have an owner.
update runs indexed by runs_active set owner = null where {active} and owner = :id

-- name: advance
-- Check the fence and the batch number in one statement.
update engines set batch = :number where id = :id and epoch = :epoch and alive and batch = :number - 1

-- name: insert_runs
-- New runs. If an id is taken, fewer rows are written. Each run was born before this many of the batch's numbers.
insert into runs (
    id, workflow, model, parent_id, bond, created_at,
    workflow_version, status, version, revision, owner, claim, tags, hold_kind, hold_fingerprint, hold, deadline,
    attempt, recoveries, undo, origin, started_at, updated_at, completed_at,
    spilled, input, output, failure, born
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (select value from sequence) - ?)
on conflict (id) do nothing

-- name: insert_beginning_runs
-- New runs that begin at once and have only usual values, as most runs have. sqlite3 takes four times as long for a
-- null as for a number. So no nulls are passed here and below: 0 means null in a text column, and '' in a number
-- column.
insert into runs (
    id, workflow, model, parent_id, bond, created_at, workflow_version, status, version, revision, owner, claim, tags,
    attempt, recoveries, undo, origin, started_at, updated_at, spilled, input, born
)
values (?, ?, ?, nullif(?, 0), ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 0, 0, ?, ?, ?, 0, ?, (select value from sequence) - ?)
on conflict (id) do nothing

-- name: update_runs
-- Runs' rows in their final state, without payloads. If a row is not as expected, fewer rows are written.
update runs set
    workflow_version = new.workflow_version, status = new.status, version = new.version, revision = new.revision,
    owner = new.owner, claim = new.claim, tags = new.tags, hold_kind = new.hold_kind,
    hold_fingerprint = new.hold_fingerprint, hold = new.hold, deadline = new.deadline, attempt = new.attempt,
    recoveries = new.recoveries, undo = new.undo, origin = new.origin, started_at = new.started_at,
    updated_at = new.updated_at, completed_at = new.completed_at
from (
    with new (
        id, expected_owner, expected_version, expected_claim,
        workflow_version, status, version, revision, owner, claim, tags, hold_kind, hold_fingerprint, hold, deadline,
        attempt, recoveries, undo, origin, started_at, updated_at, completed_at
    ) as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
    select * from new
) as new
where runs.id = new.id and runs.owner is new.expected_owner and runs.version = new.expected_version
    and runs.claim = new.expected_claim

-- name: update_runs_with_outcome
-- Runs' rows in their final state, with output and failure.
update runs set
    workflow_version = new.workflow_version, status = new.status, version = new.version, revision = new.revision,
    owner = new.owner, claim = new.claim, tags = new.tags, hold_kind = new.hold_kind,
    hold_fingerprint = new.hold_fingerprint, hold = new.hold, deadline = new.deadline, attempt = new.attempt,
    recoveries = new.recoveries, undo = new.undo, origin = new.origin, started_at = new.started_at,
    updated_at = new.updated_at, completed_at = new.completed_at,
    spilled = (runs.spilled & 1) | new.spilled, output = new.output, failure = new.failure
from (
    with new (
        id, expected_owner, expected_version, expected_claim,
        workflow_version, status, version, revision, owner, claim, tags, hold_kind, hold_fingerprint, hold, deadline,
        attempt, recoveries, undo, origin, started_at, updated_at, completed_at,
        spilled, output, failure
    ) as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
    select * from new
) as new
where runs.id = new.id and runs.owner is new.expected_owner and runs.version = new.expected_version
    and runs.claim = new.expected_claim

-- name: update_runs_briefly
-- The same for runs with few changes: 10 µs a row instead of 22 (medians of three, busy machine).
update runs set
    status = new.status, version = new.version, revision = new.revision, owner = new.owner, claim = new.claim,
    updated_at = new.updated_at, completed_at = new.completed_at
from (
    with new (
        id, expected_owner, expected_version, expected_claim,
        status, version, revision, owner, claim, updated_at, completed_at
    ) as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
    select * from new
) as new
where runs.id = new.id and runs.owner is new.expected_owner and runs.version = new.expected_version
    and runs.claim = new.expected_claim

-- name: update_runs_briefly_with_outcome
update runs set
    status = new.status, version = new.version, revision = new.revision, owner = new.owner, claim = new.claim,
    updated_at = new.updated_at, completed_at = new.completed_at,
    spilled = (runs.spilled & 1) | new.spilled, output = new.output, failure = new.failure
from (
    with new (
        id, expected_owner, expected_version, expected_claim,
        status, version, revision, owner, claim, updated_at, completed_at, spilled, output, failure
    ) as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
    select * from new
) as new
where runs.id = new.id and runs.owner is new.expected_owner and runs.version = new.expected_version
    and runs.claim = new.expected_claim

-- name: update_succeeding_runs
-- The same for runs that end with an output that is not large.
update runs set
    status = new.status, version = new.version, revision = new.revision, owner = null, claim = new.claim,
    updated_at = new.updated_at, completed_at = new.updated_at,
    spilled = runs.spilled & 1, output = new.output, failure = null
from (
    with new (id, expected_owner, expected_version, expected_claim, status, version, revision, claim, updated_at, output)
    as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
    select * from new
) as new
where runs.id = new.id and runs.owner = new.expected_owner and runs.version = new.expected_version
    and runs.claim = new.expected_claim

-- name: drop_large_input
-- Delete the large payload of an input that is replaced.
delete from payloads where run_id = ? and slot = 'input'

-- name: replace_input
-- Give a run another input, and perhaps another workflow.
update runs set spilled = (spilled & ~1) | ?, input = ?, workflow = ? where id = ?

-- name: expectations
-- The columns that show whether runs are as a batch expects them.
select id, owner, version, claim from runs where id in {given_ids}

-- name: revisions
-- How many audit rows runs have. It also shows changes that leave the version as it is.
select id, revision from runs where id in {given_ids}

-- name: archive
-- Archive the entries from a number on.
insert into journal_archive (
    run_id, attempt, seq, position, kind, name, value, failure, attempts, started_at, at, digest, spilled
)
select run_id, ?, seq, position, kind, name, value, failure, attempts, started_at, at, digest, spilled
from journal where run_id = ? and seq >= ?

-- name: archive_payloads
-- Move the large payloads of archived entries.
update payloads set slot = 'archive:' || ? || ':' || substr(slot, 7)
where run_id = ? and slot glob 'entry:*' and cast(substr(slot, 7) as integer) >= ?

-- name: archive_clear
-- Delete archived entries from the journal.
delete from journal where run_id = ? and seq >= ?

-- name: clear_journal
-- A run continues without its history. Delete its entries,
delete from journal where run_id = ?

-- name: clear_archive
-- the entries that retries have archived,
delete from journal_archive where run_id = ?

-- name: clear_audit
-- the audit trail, which begins again where the run continues,
delete from audit where run_id = ?

-- name: clear_history_payloads
-- and the large payloads of entries.
delete from payloads where run_id = ? and (slot glob 'entry:*' or slot glob 'archive:*')

-- name: insert_journal
-- Append entries.
insert into journal (run_id, seq, position, kind, name, value, failure, attempts, started_at, at, digest, spilled)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_steps
-- Append entries of steps that succeeded at the first attempt.
insert into journal (run_id, seq, position, kind, name, value, attempts, started_at, at, digest, spilled)
values (?, ?, ?, 'step', ?, ?, 1, ?, ?, ?, 0)

-- name: insert_payloads
-- Large payloads, after the rows they belong to.
insert or replace into payloads (run_id, slot, data)
values (?, ?, ?)

-- name: clear_waits
-- All waits of runs.
delete from waits where run_id in (values (?))

-- name: drop_waits
-- Waits at single positions.
delete from waits where (run_id, position) in (with new (run_id, position) as (values (?, ?)) select * from new)

-- name: clear_staged
-- All staged results of runs.
delete from staged where run_id in (values (?))

-- name: drop_staged
-- Staged results at single positions.
delete from staged where (run_id, position) in (with new (run_id, position) as (values (?, ?)) select * from new)

-- name: staged_columns
-- A staged result, in the order of the fields of kernel.rows.Staged.
run_id, position, name, claim, attempt, value, started_at, at

-- name: staged
-- Staged results of runs.
select {staged_columns} from staged where run_id in {given_ids} order by run_id, position

-- name: staged_at
-- The staged result at one position.
select {staged_columns} from staged where run_id = :run_id and position = :position

-- name: insert_staged
insert into staged ({staged_columns})
values (:run_id, :position, :name, :claim, :attempt, :value, :started_at, :at)

-- name: is_owned
-- Whether an engine owns a run, with this claim.
select 1 from runs
where id = :run_id and owner = :engine_id and claim = :claim and hold_kind is null and {active}

-- name: put_waits
-- New waits, or new states of existing waits.
insert or replace into waits (
    run_id, position, option, kind, name, shape, filter, mode, target, number, due_at, attempts, failure, since,
    details
)
values (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), ?, nullif(?, ''), ?, nullif(?, 0), ?, nullif(?, 0))

-- name: mark_waits
-- Mark positions as won: their runs must go on.
update waits set due_at = 0
where (run_id, position) in (with new (run_id, position) as (values (?, ?)) select * from new)

-- name: mark_consumed
-- Runs whose failure was handed to a run that waited for it.
update runs set consumed = 1 where id in (values (?))

-- name: take_numbers
-- Take the next numbers of the sequence.
update sequence set value = value + :count

-- name: last_number
select value from sequence

-- name: book_version
select version from handler_book

-- name: numbers_used
-- The greatest number that any row has.
select max(
    coalesce((select max(number) from events where typeof(number) = 'integer'), 0),
    coalesce((select max(number) from waits where typeof(number) = 'integer'), 0)
)

-- name: put_keys
-- Insert keys of events. If a key was used before, fewer rows are written.
insert into event_keys (key, event_id, at) values (?, ?, ?) on conflict (key) do nothing

-- name: delete_keys
-- Delete keys of events that were refused.
delete from event_keys where key in {given_ids}

-- name: insert_events
-- Insert new events, or events that change their place.
insert into events (
    number, id, run_id, position, option, shared, consumed, name, expires_at, fallback, key, actor, at, fields, value
)
values (?, ?, nullif(?, 0), nullif(?, 0), ?, ?, ?, ?, ?, ?, nullif(?, 0), ?, ?, ?, ?)

-- name: read_events
-- Delete events that runs have read.
delete from events where rowid in (
    select events.rowid from (with new (run_id, id) as (values (?, ?)) select * from new) as new
    cross join events indexed by events_run
        on events.run_id is not null and events.run_id = new.run_id and events.id = new.id
)

-- name: note_reads
-- Note which runs have read retained events, so that they do not read them again. Executed before these events are
-- deleted.
insert or ignore into event_reads (run_id, event_id)
select events.run_id, events.id
from (with new (run_id, event_id) as (values (?, ?)) select * from new) as new
cross join events indexed by events_run
    on events.run_id is not null and events.run_id = new.run_id and events.id = new.event_id
where not events.consumed

-- name: give_event
-- An event that was waiting in its run's mailbox has won a position.
update events indexed by events_run set position = :position, option = :option
where run_id is not null and run_id = :run_id and id = :id

-- name: free_event
-- The position that an event had won was removed, so the event waits again.
update events indexed by events_run set position = null where run_id is not null and run_id = :run_id and id = :id

-- name: delete_event
-- One event of a run.
delete from events indexed by events_run where run_id is not null and run_id = :run_id and id = :id

-- name: delete_queued
-- One event of a queue.
delete from events where run_id is null and name = :name and number = :number

-- name: set_reached
-- How far a retained event was delivered. Null means to all runs that waited for it.
update events set reached = :reached where run_id is null and name = :name and number = :number

-- name: insert_letter
insert or replace into dead_letters (id, name, fields, run_id, status, ended_at, consumed, at, value)
values (:id, :name, :fields, :run_id, :status, :ended_at, :consumed, :at, :value)

-- name: delete_letters
delete from dead_letters where id in (values (?))

-- name: forget_reads
-- A run has ended: the events that it has read no longer matter.
delete from event_reads where run_id in (values (?))

-- name: event_columns
-- An event, in the order of the fields of kernel.events.Event.
events.id, events.name, events.value, events.fields, events.run_id, events.shared, events.consumed, events.position,
events.option, events.number, events.expires_at, events.fallback, events.key, events.actor, events.at

-- name: wait_columns
-- A wait, in the order of the fields of kernel.rows.Wait; its filter has the shape in it.
waits.run_id, waits.position, waits.option, waits.kind, waits.name, waits.filter, waits.mode, waits.target,
waits.number, waits.due_at, waits.attempts, waits.failure, waits.since, waits.details

-- name: is_eventful
-- Whether any run has an event, and whether any run waits for the end of a run.
select exists (select 1 from events indexed by events_run where run_id is not null),
    exists (select 1 from waits indexed by waits_target where target is not null and due_at is null)

-- name: freed
-- The events that have won one of these positions, or any position of these runs. Also all events of the runs that have
-- ended. Pairs are looked up by a join, because SQLite looks up `(a, b) in (…)` only by the first column.
select {event_columns}
from (select json_extract(value, '$[0]') as run_id, json_extract(value, '$[1]') as position from json_each(:positions)) as given
cross join events indexed by events_won on events.run_id = given.run_id and events.position = given.position
where events.position is not null
union all
select {event_columns} from events indexed by events_won where position is not null and run_id in {given_ids}
union all
select {event_columns} from events indexed by events_run
where run_id is not null and run_id in (select value from json_each(:cleared)) and position is null

-- name: queue
-- The events in the queue of a name.
select {event_columns} from events indexed by events_queue
where run_id is null and name = :name and number > :after and expires_at > :at order by number limit :limit

-- name: shapes
-- The sets of fields by which waits for a name filter. The query steps from set to set through the index.
with recursive shapes (shape) as (
    select min(shape) from waits indexed by waits_open where name = :name and kind = 'event' and due_at is null
    union all
    select (
        select waits.shape from waits indexed by waits_open
        where name = :name and kind = 'event' and due_at is null and waits.shape > shapes.shape
        order by waits.shape limit 1
    )
    from shapes where shapes.shape is not null
)
select shape from shapes where shape is not null

-- name: waiting
-- Waits for a name with exactly this filter, the longest waiting first.
select {wait_columns} from waits indexed by waits_open
where kind = 'event' and due_at is null and name = :name and shape = :shape and filter = :filter
    and number > :after and number < :before
order by number limit :limit

-- name: pending
-- How many events are in the queue of a name. If the stored number is damaged, the events are counted.
select case when typeof(length) = 'integer' and length >= 0 then length else (
    select count(*) from events indexed by events_queue where run_id is null and name = :name and consumed
) end
from queues where name = :name

-- name: pending_expired
-- How many events in the queue of a name have expired.
select count(*) from events indexed by events_queue
where run_id is null and name = :name and consumed and expires_at <= :at

-- name: has_read
-- Those of these retained events that a run has read or was given.
select event_id from event_reads where run_id = :run_id and event_id in {given_ids}
union select id from events indexed by events_run
where run_id is not null and run_id = :run_id and not consumed and id in {given_ids}

-- name: readers
-- Of these runs, those that have read a retained event or were given it.
select run_id from event_reads where event_id = :event_id and run_id in {given_ids}
union select run_id from events indexed by events_run
where run_id is not null and run_id in {given_ids} and id = :event_id

-- name: born
-- The value of the sequence when a run was created.
select born from runs where id = :run_id

-- name: still_active
-- Of these runs, those that have not ended.
select runs.id from runs where runs.id in {given_ids} and {active}

-- name: awaiting
-- Waits for the ends of these runs.
select {wait_columns} from waits indexed by waits_target
where target is not null and due_at is null and target in {given_ids}

-- name: kept
-- A retained event that is being delivered, and how far it has been delivered.
select {event_columns}, events.reached from events indexed by events_reached where reached is not null and id = :id

-- name: spreading
select id from events indexed by events_reached where reached is not null order by number

-- name: events
-- Events that were sent or given to runs.
select {event_columns} from events indexed by events_run
where run_id is not null and run_id in {given_ids} order by run_id, number

-- name: queued_events
-- Events that any run may get.
select {event_columns} from events where run_id is null and (:name is null or name = :name) order by number limit :limit

-- name: letters
select id, name, value, fields, run_id, status, ended_at, consumed, at from dead_letters
where (:name is null or name = :name) and (:after is null or id > :after) order by id limit :limit

-- name: letter
select id, name, value, fields, run_id, status, ended_at, consumed, at from dead_letters where id = :id

-- name: sent
select key, event_id from event_keys where key in {given_ids}

-- name: purge_events
-- Delete expired events, except those that have won a wait and those that are still being delivered.
delete from events where rowid in (
    select rowid from events indexed by events_expiry
    where position is null and expires_at <= :at and reached is null limit :limit
)
returning id, run_id is null and not consumed

-- name: purge_reads
-- Forget which runs have read retained events that are gone.
delete from event_reads where event_id in {given_ids}

-- name: purge_keys
delete from event_keys where key in (select key from event_keys indexed by event_keys_at where at < :before limit :limit)

-- name: children
-- Active children that are not detached.
select {run_columns} from runs indexed by runs_parent
where runs.parent_id in {given_ids} and {active} and runs.bond <> 'detached' order by runs.created_at, runs.id

-- name: stopped_children
-- Active children that are not detached, and children that were cancelled or rolled back.
select {run_columns} from runs indexed by runs_parent
where runs.parent_id in {given_ids} and runs.status not in ('succeeded', 'failed') and runs.bond <> 'detached'
order by runs.created_at, runs.id

-- name: known_version
-- A run's version. The version of an operation is the topic of its message. Earlier versions of Perdure did not store
-- it with the run.
case when runs.model = 'operation' and runs.workflow_version = '' then coalesce(
    (select topic from messages where messages.id = substr(runs.origin, instr(runs.origin, ' ') + 1)), ''
) else runs.workflow_version end

-- name: known_model
-- A run's model. It is '' if only the code of the run's workflow knows it: see Run.known_model.
case when runs.model <> 'operation' and (
    (runs.model = 'function' and runs.claim = 0)
    or (runs.origin <> '' and (runs.bond <> 'called' or instr(runs.origin, ' #') > 0))
) then '' else runs.model end

-- name: offered
-- Runs that fit an engine's offers. The offers are a JSON list of workflows, versions and models.
(runs.workflow, {known_version}, {known_model}) in (
    select json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') from json_each(:offers)
)

-- name: ripe_waits
-- Suspended runs that fit an offer, have no living owner, and are due before a time. They are in the order of the
-- index, so that a reader that has enough runs can stop. A run is listed once for each of its waits.
select waits.run_id, waits.due_at from waits indexed by waits_due cross join runs on runs.id = waits.run_id
where waits.due_at is not null and waits.due_at < :before
    and runs.status = 'suspended' and runs.hold_kind is null and {offered}
    and (runs.owner is null or runs.owner not in (select id from engines where alive))
order by waits.due_at

-- name: damaged_waits
-- Suspended runs with a due time that is not a number. Texts and other damage sort after all numbers. The engine that
-- claims such a run holds it.
select waits.run_id from waits indexed by waits_due cross join runs on runs.id = waits.run_id
where waits.due_at is not null and waits.due_at > 4611686018427387904 and runs.status = 'suspended'
    and runs.hold_kind is null
order by waits.due_at limit :limit

-- name: is_held_alive
-- A held run that its deadline can end.
(runs.model = 'operation' or runs.status in ('created', 'running', 'suspended'))

-- name: ripe_deadlines
-- Runs whose deadline is due before a time. Held runs are listed too, if their deadline can end them without their
-- code. These are runs that do not roll back, and all runs of operations.
select runs.id, runs.deadline from runs indexed by runs_deadline
where runs.deadline is not null and {active} and runs.deadline < :before
    and case when runs.hold_kind is null then {offered} else {is_held_alive} end
    and (runs.owner is null or runs.owner not in (select id from engines where alive))
order by runs.deadline limit :limit

-- name: insert_audit
-- Append audit rows.
insert into audit (run_id, seq, version, was, became, cause, actor, details, at)
values (?, ?, ?, nullif(?, 0), ?, ?, ?, ?, ?)

-- name: put_published
-- Values that runs have published, unless a newer value is stored.
insert into published (run_id, key, at, seq, number, value)
values (?, ?, ?, ?, ?, ?)
on conflict (run_id, key) do update set at = excluded.at, seq = excluded.seq, number = excluded.number, value = excluded.value
where (excluded.seq, excluded.number) > (published.seq, published.number)

-- name: insert_stream_items
-- Append to streams.
insert into stream_items (run_id, stream, "offset", at, position, attempt, seq, number, value)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: last_offset
-- The length of a stream.
select coalesce(max("offset"), 0) from stream_items where run_id = :run_id and stream = :stream

-- name: said_in
-- Numbers of an activation's items that are already in a run's streams.
select number from stream_items indexed by stream_items_said where seq is not null and run_id = :run_id and seq = :seq

-- name: forget_said
-- A run may append again from an activation on.
update stream_items indexed by stream_items_said set seq = null, number = null
where seq is not null and run_id = :run_id and seq >= :first

-- name: outdate_published
-- The same for published values. Each value stays until it is published again.
update published set seq = :seq, number = :number where run_id = :run_id and seq >= :first

-- name: reply_mail
-- Insert replies to mail that still exists.
insert or replace into mail_replies (slot, reply, at)
select mail.slot, new.reply, new.at from (with new (id, reply, at) as (values (?, ?, ?)) select * from new) as new
join mail on mail.id = new.id where mail.slot is not null

-- name: delete_mail
-- Delete mail that a commit consumes.
delete from mail where id in (values (?))

-- name: owners
-- Owners of active runs that are not living engines. The query steps from owner to owner through the index, and does
-- not read every run.
with recursive owners (owner) as (
    select min(runs.owner) from runs indexed by runs_active where {active} and runs.owner is not null
    union all
    select (
        select runs.owner from runs indexed by runs_active
        where {active} and runs.owner > owners.owner order by runs.owner limit 1
    )
    from owners where owners.owner is not null
)
select owner from owners where owner is not null and owner not in (select id from engines where alive)

-- name: stage
-- Runs that have begun, or runs that have not, or all. A run has begun if it has a row with the number 1.
(:begun is null or :begun = exists (select 1 from message_event where scope = runs.id and seq = 1))

-- name: claimable
-- The oldest runs of a workflow that an owner has, or that have no owner. Suspended and held runs are left out.
select runs.created_at, runs.id from runs indexed by runs_awake
where {awake} and runs.owner is :owner and runs.workflow = :workflow and runs.workflow_version = :stored_version
    and {known_model} in (:model, :or_model) and {known_version} = :version and runs.hold_kind is null and {stage}
order by runs.created_at, runs.id limit :limit

-- name: claimable_blocked
-- Blocked runs of a workflow that have no living owner and were tried only with other code: see kernel/fingerprints.py.
-- Without a fingerprint, all blocked runs that some code may fit.
select runs.created_at, runs.id, runs.owner from runs indexed by runs_held
where runs.hold_kind = 'blocked' and runs.workflow = :workflow and {active}
    and {known_model} in (:model, :or_model) and {known_version} = :version
    and runs.hold_fingerprint <> '' and instr(' ' || runs.hold_fingerprint || ' ', ' ' || :fingerprint || ' ') = 0
    and {stage}
    and (runs.owner is null or runs.owner not in (select id from engines where alive))
order by runs.created_at, runs.id limit :limit

-- name: take_over
-- Give runs to an engine.
update runs set owner = :owner, claim = case when typeof(claim) = 'integer' then claim + 1 else claim end
where id in {given_ids}

-- name: put_model
-- The model of a run, once it is known.
update runs set model = :model where id = :run_id

-- name: runs
-- Runs by id, and whether each has no living owner.
select {run_columns},
    runs.owner is not null and not exists (select 1 from engines where engines.id = runs.owner and engines.alive)
    as forsaken
from runs where runs.id in {given_ids}

-- name: set_aside
-- Hold a damaged run. If its revision is not a number, the revision stays unchanged.
update runs set
    owner = null, hold_kind = :kind, hold_fingerprint = '', hold = :hold,
    revision = case when typeof(revision) = 'integer' then revision + 1 else revision end
where id = :run_id and hold_kind is null and (
    owner is null or owner = :engine_id
    or not exists (select 1 from engines where engines.id = runs.owner and engines.alive)
)

-- name: audit_set_aside
insert or ignore into audit (run_id, seq, version, was, became, cause, actor, details, at)
select id, revision, version, status, :kind, :reason, '', '', :at from runs where id = :run_id

-- name: waits
-- The waits of runs.
select {wait_columns} from waits where run_id in {given_ids} order by run_id, position, option

-- name: stored_runs
-- Runs by id, with payloads.
select {run_columns},
    case when runs.spilled & 1 then (select data from payloads where run_id = runs.id and slot = 'input')
        else runs.input end,
    case when runs.spilled & 2 then (select data from payloads where run_id = runs.id and slot = 'output')
        else runs.output end,
    case when runs.spilled & 4 then (select data from payloads where run_id = runs.id and slot = 'failure')
        else runs.failure end,
    runs.spilled
from runs where runs.id in {given_ids}

-- name: inputs
-- Runs' inputs.
select id, case when spilled & 1 then (select data from payloads where run_id = runs.id and slot = 'input') else input end
    as text
from runs where id in {given_ids}

-- name: journals
-- Runs' entries in completion order.
select run_id, seq, position, kind, name,
    case when spilled = 1
        then (select data from payloads where run_id = journal.run_id and slot = 'entry:' || journal.seq)
        else value end as value,
    case when spilled = 2
        then (select data from payloads where run_id = journal.run_id and slot = 'entry:' || journal.seq)
        else failure end as failure,
    attempts, started_at, at, digest, spilled
from journal where run_id in {given_ids} order by run_id, seq

-- name: archived
-- Entries that retries have archived. The first column is the attempt.
select attempt, run_id, seq, position, kind, name,
    case when spilled = 1
        then (select data from payloads where run_id = :run_id and slot = 'archive:' || attempt || ':' || seq)
        else value end,
    case when spilled = 2
        then (select data from payloads where run_id = :run_id and slot = 'archive:' || attempt || ':' || seq)
        else failure end,
    attempts, started_at, at, digest, spilled
from journal_archive where run_id = :run_id order by attempt, seq

-- name: audit
-- A run's audit rows, oldest first.
select run_id, seq, version, was, became, cause, actor, details, at from audit where run_id = :run_id order by seq

-- name: audits
-- The audit rows of several runs.
select run_id, seq, version, was, became, cause, actor, details, at from audit
where run_id in {given_ids} order by run_id, seq

-- name: changed_runs
-- Runs that may have audit rows from a time on, by id. Holding a damaged run is audited, but leaves the run's time as
-- it was.
select id, workflow from runs
where id > :after and (updated_at >= :since or hold_kind is not null)
order by id limit :limit

-- name: status
select status from runs where id = :run_id

-- name: published
-- Values that a run has published, under one key or under all keys. The columns have the order of the fields of
-- kernel.rows.PublishedValue.
select run_id, key, value, at from published where run_id = :run_id and (:key is null or key = :key) order by key

-- name: stream
-- Items of a stream, in the order of the fields of kernel.rows.StreamItem.
select run_id, stream, "offset", value, at, position, attempt from stream_items
where run_id = :run_id and stream = :stream and "offset" > :after order by "offset" limit :limit

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
-- Store a mail, unless its slot shows that it was stored before.
insert into mail (run_id, sender, slot, op, at)
select :run_id, :sender, :slot, :op, :at
where :slot is null or :slot not in (select slot from mail_replies)
on conflict (slot) where slot is not null do nothing

-- name: addressed
-- Mail that an engine may answer, joined with its run if the run exists. Mail is consumed soon, so the query begins
-- with the mail and not with the runs.
from mail left join runs on runs.id = mail.run_id
where (
    runs.owner is null or runs.owner = :engine_id or runs.owner not in (select id from engines where alive)
)

-- name: mail
-- Mail that an engine may answer, oldest first.
select mail.id, mail.run_id, mail.sender, coalesce(mail.slot, ''), mail.op, mail.at {addressed} order by mail.id limit :limit

-- name: has_mail
-- Whether there is mail that an engine may answer.
select 1 {addressed} limit 1

-- name: replies
-- Of these slots, those that have a reply.
select slot from mail_replies where slot in {given_ids}

-- name: take_replies
-- Return the replies in these slots, and empty the slots.
delete from mail_replies where slot in {given_ids} returning slot, reply

-- name: purge_replies
-- Delete replies that nobody has read.
delete from mail_replies where slot in (select slot from mail_replies where at < :before limit :limit)

-- name: mail_there
-- Of these mails, those that still exist.
select id from mail where id in {given_ids}

-- name: owned_elsewhere
-- Of these runs, those that another living engine owns.
select id from runs
where id in {given_ids} and owner <> :engine_id and owner in (select id from engines where alive)

-- name: filters
-- The conditions of a RunFilter except the cursor. Null means that the condition was not given.
(:workflow is null or runs.workflow = :workflow)
and (:statuses is null or runs.status in (select value from json_each(:statuses)))
and (:hold is null or runs.hold_kind = :hold)
and (:parent_id is null or runs.parent_id = :parent_id)
and (:tags is null or not exists (
    select 1 from json_each(:tags) as wanted
    where not exists (
        select 1 from json_each(runs.tags) as given where given.key = wanted.key and given.value = wanted.value
    )
))

-- name: window
-- Runs from the cursor on, in the order of every index for listings.
runs.created_at >= :created_from and (runs.created_at, runs.id) < (:before_at, :before_id)

-- name: by_parent
-- The parts of listings that find runs. A listing is one of these with the filters, once for each status.
from runs indexed by runs_parent where runs.parent_id = :parent_id and {window}

-- name: by_hold
from runs indexed by runs_held where runs.hold_kind = :hold and {window}

-- name: by_tag
-- One tag finds the runs. The filters check the other tags.
from run_tags cross join runs on runs.id = run_tags.run_id
where run_tags.key = :tag_key and run_tags.value = :tag_value and run_tags.created_at >= :created_from
    and (run_tags.created_at, run_tags.run_id) < (:before_at, :before_id)

-- name: by_workflow
from runs indexed by runs_workflow where runs.workflow = :workflow and runs.status = :status and {window}

-- name: by_status
from runs indexed by runs_status where runs.status = :status and {window}

-- name: tally
-- How many runs have a status and were created between two times, up to a limit for each status. The query reads only
-- the index, and no row.
select (
    select count(*) from (
        select 1 from runs indexed by runs_status
        where runs.status = json_extract(cell.value, '$[0]')
            and runs.created_at >= json_extract(cell.value, '$[1]')
            and runs.created_at < json_extract(cell.value, '$[2]')
        limit :limit
    )
)
from json_each(:cells) as cell order by cell.key

-- name: newest
order by created_at desc, id desc limit :limit

-- name: newest_by_tag
order by run_tags.created_at desc, run_tags.run_id desc limit :limit

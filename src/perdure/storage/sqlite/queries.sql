-- Every query of the SQLite store. `-- name:` starts one; a name in braces stands for the text of that query.
-- Where a query takes many rows, it has one group of question marks that is repeated (see queries.py). Rows of nulls pad it,
-- and must change nothing.

-- name: run_columns
-- A run without payloads, in the order of the fields of kernel.records.Run.
runs.id, runs.workflow, runs.workflow_version, runs.model, runs.status, runs.version, runs.revision, runs.owner,
runs.claim, runs.parent_id, runs.tags, runs.hold, runs.deadline, runs.attempt, runs.recoveries,
runs.created_at, runs.started_at, runs.updated_at, runs.completed_at

-- name: active
-- The condition of the index runs_active, word for word, so that SQLite can use it.
runs.status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back')

-- name: unsuccessful
-- The condition of the index runs_unsuccessful, word for word.
runs.status in ('failed', 'cancelled', 'rolled_back', 'rollback_failed')

-- name: given_ids
-- A JSON list of ids as rows: a list of question marks would meet SQLite's limit on variables.
(select value from json_each(:ids))

-- name: enroll
-- Register an engine with the next epoch.
insert into engines (id, epoch, alive, batch, host, pid, workflows, started_at)
select :id, coalesce(max(epoch), 0) + 1, 1, 0, :host, :pid, :workflows, :started_at from engines

-- name: engines
-- All engines, by epoch.
select id, epoch, alive, batch, host, pid, workflows, started_at from engines order by epoch

-- name: engine
-- One engine.
select id, epoch, alive, batch, host, pid, workflows, started_at from engines where id = :id

-- name: living
-- Engines not marked dead.
select id from engines where alive

-- name: mark_dead
-- The end of an engine: it can never write again.
update engines set alive = 0 where id = :id and alive

-- name: release
-- Let go of all runs of an engine; only active ones have an owner.
update runs indexed by runs_active set owner = null where {active} and owner = :id

-- name: advance
-- The fence and the batch number in one.
update engines set batch = :number where id = :id and epoch = :epoch and alive and batch = :number - 1

-- name: insert_runs
-- New runs; an id that is taken shows in the number of rows.
insert into runs (
    id, workflow, model, parent_id, created_at,
    workflow_version, status, version, revision, owner, claim, tags, hold_kind, hold_fingerprint, hold, deadline,
    attempt, recoveries, started_at, updated_at, completed_at,
    spilled, input, output, failure
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do nothing

-- name: update_runs
-- Runs' rows in their final state, payloads apart; a row not as expected shows in the number of rows.
update runs set
    workflow_version = new.workflow_version, status = new.status, version = new.version, revision = new.revision,
    owner = new.owner, claim = new.claim, tags = new.tags, hold_kind = new.hold_kind,
    hold_fingerprint = new.hold_fingerprint, hold = new.hold, deadline = new.deadline, attempt = new.attempt,
    recoveries = new.recoveries, started_at = new.started_at,
    updated_at = new.updated_at, completed_at = new.completed_at
from (
    with new (
        id, expected_owner, expected_version,
        workflow_version, status, version, revision, owner, claim, tags, hold_kind, hold_fingerprint, hold, deadline,
        attempt, recoveries, started_at, updated_at, completed_at
    ) as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
    select * from new
) as new
where runs.id = new.id and runs.owner is new.expected_owner and runs.version = new.expected_version

-- name: update_runs_with_outcome
-- The same with output and failure.
update runs set
    workflow_version = new.workflow_version, status = new.status, version = new.version, revision = new.revision,
    owner = new.owner, claim = new.claim, tags = new.tags, hold_kind = new.hold_kind,
    hold_fingerprint = new.hold_fingerprint, hold = new.hold, deadline = new.deadline, attempt = new.attempt,
    recoveries = new.recoveries, started_at = new.started_at,
    updated_at = new.updated_at, completed_at = new.completed_at,
    spilled = (runs.spilled & 1) | new.spilled, output = new.output, failure = new.failure
from (
    with new (
        id, expected_owner, expected_version,
        workflow_version, status, version, revision, owner, claim, tags, hold_kind, hold_fingerprint, hold, deadline,
        attempt, recoveries, started_at, updated_at, completed_at,
        spilled, output, failure
    ) as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
    select * from new
) as new
where runs.id = new.id and runs.owner is new.expected_owner and runs.version = new.expected_version

-- name: drop_large_input
-- A new input takes the old one's large payload with it.
delete from payloads where run_id = ? and slot = 'input'

-- name: replace_input
-- Give a run another input.
update runs set spilled = (spilled & ~1) | ?, input = ? where id = ?

-- name: expectations
-- What tells whether runs are as a batch expects them.
select id, owner, version from runs where id in {given_ids}

-- name: archive
-- Set entries aside, from one on.
insert into journal_archive (
    run_id, attempt, seq, position, kind, name, value, failure, attempts, started_at, at, spilled
)
select run_id, ?, seq, position, kind, name, value, failure, attempts, started_at, at, spilled
from journal where run_id = ? and seq >= ?

-- name: archive_payloads
-- Their large payloads go along.
update payloads set slot = 'archive:' || ? || ':' || substr(slot, 7)
where run_id = ? and slot glob 'entry:*' and cast(substr(slot, 7) as integer) >= ?

-- name: archive_clear
-- Take the entries set aside out of the journal.
delete from journal where run_id = ? and seq >= ?

-- name: insert_journal
-- Append entries.
insert into journal (run_id, seq, position, kind, name, value, failure, attempts, started_at, at, spilled)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_payloads
-- Large payloads, after the rows they belong to.
insert or replace into payloads (run_id, slot, data)
values (?, ?, ?)

-- name: clear_waits
-- All waits of runs.
delete from waits where run_id in (values (?))

-- name: drop_waits
-- Single waits.
delete from waits where (run_id, position) in (values (?, ?))

-- name: put_waits
-- New waits, or new states of old ones.
insert or replace into waits (run_id, position, kind, name, due_at, attempts, failure, since, details)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_audit
-- Append audit rows.
insert into audit (run_id, seq, version, was, became, cause, actor, details, at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: reply_mail
-- Answers, for mail that is still there.
insert or replace into mail_replies (id, reply)
select mail.id, new.reply from (with new (id, reply) as (values (?, ?)) select * from new) as new
join mail on mail.id = new.id

-- name: delete_mail
-- Mail that a commit consumes.
delete from mail where id in (values (?))

-- name: owners
-- Everybody who owns an active run and is not a living engine. Steps from owner to owner through the index instead of
-- reading every run.
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

-- name: claimable
-- The oldest active runs of a workflow that an owner (or nobody) has, without those held, but for blocked ones that other
-- code may fit.
select runs.created_at, runs.id from runs indexed by runs_active
where {active} and runs.owner is :owner and runs.workflow = :workflow
    and (
        runs.hold_kind is null
        or (runs.hold_kind = 'blocked' and runs.hold_fingerprint not in ('', :fingerprint))
    )
order by runs.created_at, runs.id limit :limit

-- name: take_over
-- Give runs to an engine.
update runs set owner = :owner, claim = claim + 1 where id in {given_ids}

-- name: runs
-- Runs by id.
select {run_columns} from runs where runs.id in {given_ids}

-- name: waits
-- What runs wait for.
select run_id, position, kind, name, due_at, attempts, failure, since, details from waits
where run_id in {given_ids} order by run_id, position

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

-- name: input
-- A run's input.
select case when spilled & 1 then (select data from payloads where run_id = runs.id and slot = 'input') else input end
from runs where id = :run_id

-- name: journal
-- A run's entries in completion order.
select run_id, seq, position, kind, name,
    case when spilled = 1 then (select data from payloads where run_id = :run_id and slot = 'entry:' || seq)
        else value end,
    case when spilled = 2 then (select data from payloads where run_id = :run_id and slot = 'entry:' || seq)
        else failure end,
    attempts, started_at, at, spilled
from journal where run_id = :run_id order by seq

-- name: archived
-- Entries set aside by retries, with their attempt first.
select attempt, run_id, seq, position, kind, name,
    case when spilled = 1
        then (select data from payloads where run_id = :run_id and slot = 'archive:' || attempt || ':' || seq)
        else value end,
    case when spilled = 2
        then (select data from payloads where run_id = :run_id and slot = 'archive:' || attempt || ':' || seq)
        else failure end,
    attempts, started_at, at, spilled
from journal_archive where run_id = :run_id order by attempt, seq

-- name: audit
-- A run's audit rows, oldest first.
select run_id, seq, version, was, became, cause, actor, details, at from audit where run_id = :run_id order by seq

-- name: post
-- Leave mail.
insert into mail (run_id, sender, op, at) values (:run_id, :sender, :op, :at)

-- name: mail
-- Mail for an engine's runs, oldest first. Mail is consumed soon, so it is the mail that is gone through, not the runs.
select mail.id, mail.run_id, mail.sender, mail.op, mail.at
from mail cross join runs on runs.id = mail.run_id where runs.owner = :engine_id order by mail.id limit :limit

-- name: reply
-- The answer to a mail.
select reply from mail_replies where id = :id

-- name: delete_reply
-- Empty the slot.
delete from mail_replies where id = :id

-- name: filters
-- The conditions of a RunFilter but for the cursor; null stands for a condition that was not given.
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

-- name: newest
-- From the cursor on, newest first, in the order that every index on created_at has.
runs.created_at >= :created_from and (runs.created_at, runs.id) < (:before_at, :before_id)
order by runs.created_at desc, runs.id desc limit :limit

-- name: list_by_parent
select {run_columns} from runs indexed by runs_parent
where runs.parent_id = :parent_id and {filters} and {newest}

-- name: list_by_tag
-- One of the tags finds the runs, the filters check the others.
select {run_columns} from run_tags cross join runs on runs.id = run_tags.run_id
where run_tags.key = :tag_key and run_tags.value = :tag_value and run_tags.created_at >= :created_from
    and (run_tags.created_at, run_tags.run_id) < (:before_at, :before_id) and {filters}
order by run_tags.created_at desc, run_tags.run_id desc limit :limit

-- name: list_held
select {run_columns} from runs indexed by runs_held
where runs.hold_kind is not null and {filters} and {newest}

-- name: list_active
-- Sorts the active runs, of which there are few beside the finished ones.
select {run_columns} from runs indexed by runs_active where {active} and {filters} and {newest}

-- name: list_unsuccessful
select {run_columns} from runs indexed by runs_unsuccessful where {unsuccessful} and {filters} and {newest}

-- name: list_all
select {run_columns} from runs indexed by runs_created where {filters} and {newest}

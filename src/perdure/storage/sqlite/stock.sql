-- The queries of artifacts, tasks and records. As in queries.sql, a comment with its name starts one.

-- name: artifact_columns
-- An artifact without content, in the order of the fields of kernel.stock.Artifact.
id, run_id, name, type, form, media_type, size, digest, workflow, step, position, attempt, seq, number, state, version,
staged_at, published_at, chunks

-- name: visible
-- Those that are published, and, if asked for, those that are staged.
(state = 'published' or (:staged and state = 'staged'))

-- name: insert_artifact
-- One that workflow code has staged before is left as it is.
insert into artifacts (
    id, run_id, name, type, form, media_type, size, digest, workflow, step, position, attempt, seq, number, state, version,
    staged_at, published_at, chunks, content
)
values (
    :id, :run_id, :name, :type, :form, :media_type, :size, :digest, :workflow, :step, :position, :attempt, :seq, :number,
    :state, :version, :staged_at, :published_at, :chunks, :content
)
on conflict do nothing

-- name: insert_chunk
insert or replace into artifact_chunks (artifact_id, number, run_id, data) values (:artifact_id, :number, :run_id, :data)

-- name: drop_chunks
-- Those of an artifact that did not come to be.
delete from artifact_chunks where artifact_id = :id and not exists (select 1 from artifacts where id = :id)

-- name: drop_stray_chunks
-- Those of a run that no artifact has.
delete from artifact_chunks where run_id = :run_id and artifact_id not in (select id from artifacts where run_id = :run_id)

-- name: stocked
-- Those runs that have artifacts, or parts of some.
select value from json_each(:ids)
where exists (select 1 from artifacts where run_id = value) or exists (select 1 from artifact_chunks where run_id = value)

-- name: drop_artifacts
-- What a run has staged from an entry on.
delete from artifacts where run_id = :run_id and state <> 'published' and seq >= :first

-- name: outdate_artifacts
-- A run begins anew: what it has staged stays, and its code may stage more.
update artifacts set seq = seq - :lap where run_id = :run_id and state <> 'published'

-- name: move_artifacts
-- What a run has staged is set aside, or staged again.
update artifacts set state = :state where run_id = :run_id and state <> 'published' and state <> :state

-- name: staged
-- What a run has staged, in the order of staging.
select id, name from artifacts where run_id = :run_id and state <> 'published'
order by seq, position = '', coalesce(number, 0), id

-- name: publish
update artifacts set
    state = 'published', published_at = :at,
    version = 1 + (select coalesce(max(known.version), 0) from artifacts as known
        where known.name = :name and known.version is not null and known.version < 4611686018427387904)
where id = :id

-- name: artifacts_within
-- Whether the run is one of those that a list is for; without a limit in that, all are.
(
    :workflows is null
    or exists (
        select 1 from runs where runs.id = artifacts.run_id and (
            runs.workflow in (select value from json_each(:workflows))
            or exists (
                select 1 from json_each(:tags) as wanted cross join run_tags as found
                where found.key = json_extract(wanted.value, '$[0]') and found.value = json_extract(wanted.value, '$[1]')
                    and found.created_at = runs.created_at and found.run_id = runs.id
            )
        )
    )
)

-- name: artifacts_of_run
select {artifact_columns} from artifacts indexed by artifacts_run
where run_id = :run_id and (:after is null or id < :after) and {visible} and {artifacts_within} and (:name is null or name = :name)
    and (:type is null or type = :type)
order by id desc limit :limit

-- name: artifacts_of_name
select {artifact_columns} from artifacts indexed by artifacts_name
where name = :name and (:after is null or id < :after) and {visible} and {artifacts_within}
    and (:type is null or type = :type)
order by id desc limit :limit

-- name: artifacts_of_type
select {artifact_columns} from artifacts indexed by artifacts_type
where type = :type and id < coalesce(:after, char(1114111)) and {visible} and {artifacts_within} order by id desc limit :limit

-- name: artifacts_all
select {artifact_columns} from artifacts
where id < coalesce(:after, char(1114111)) and {visible} and {artifacts_within} order by id desc limit :limit

-- name: artifact
-- One that is not set aside, with its content.
select {artifact_columns}, content from artifacts where id = :id and state <> 'aside'

-- name: artifact_version
select {artifact_columns}, content from artifacts where version is not null and name = :name and version = :version

-- name: newest_artifact
select {artifact_columns}, content from artifacts where version is not null and name = :name order by version desc limit 1

-- name: chunk
select data from artifact_chunks where artifact_id = :artifact_id and number = :number

-- name: task_columns
-- A task, in the order of the fields of kernel.stock.Task.
id, run_id, position, queue, kind, title, schema, payload, status, worker, lease_us, lease_until, beat_at, details, error,
claims, due_at, created_at, closed_at, answered_by, actor

-- name: insert_task
insert into tasks (
    id, run_id, position, queue, kind, title, schema, payload, status, worker, lease_us, lease_until, beat_at, details,
    error, claims, due_at, created_at, closed_at, answered_by
)
values (
    :id, :run_id, :position, :queue, :kind, :title, :schema, :payload, :status, :worker, :lease_us, :lease_until, :beat_at,
    :details, :error, :claims, :due_at, :created_at, :closed_at, :answered_by
)

-- name: answer_task
-- If it is open, and not with another worker.
update tasks set status = 'answered', closed_at = :at, answered_by = :by
where id = :task_id and status = 'open' and (:worker is null or worker = :worker)

-- name: withdraw_task
update tasks set status = 'withdrawn', closed_at = :at where id = :id and status = 'open'

-- name: tasks_within
-- Whether the run is one of those that a list is for; without a limit in that, all are.
(
    :workflows is null
    or exists (
        select 1 from runs where runs.id = tasks.run_id and (
            runs.workflow in (select value from json_each(:workflows))
            or exists (
                select 1 from json_each(:tags) as wanted cross join run_tags as found
                where found.key = json_extract(wanted.value, '$[0]') and found.value = json_extract(wanted.value, '$[1]')
                    and found.created_at = runs.created_at and found.run_id = runs.id
            )
        )
    )
)

-- name: is_wanted_task
-- The rest of a filter for tasks.
(:after is null or id > :after) and (:kind is null or kind = :kind) and (:queue is null or queue = :queue)
and (
    :status is null
    or (:status = 'open' and status = 'open' and (lease_until is null or lease_until <= :at))
    or (:status = 'claimed' and status = 'open' and lease_until > :at)
    or (:status <> 'open' and status = :status)
)
and {tasks_within}

-- name: tasks_of_run
select {task_columns} from tasks indexed by tasks_run where run_id = :run_id and {is_wanted_task} order by id limit :limit

-- name: tasks_open
select {task_columns} from tasks indexed by tasks_open
where status = 'open' and queue = :queue and {is_wanted_task} order by id limit :limit

-- name: tasks_open_anywhere
select {task_columns} from tasks indexed by tasks_open where status = 'open' and {is_wanted_task} order by id limit :limit

-- name: tasks_all
select {task_columns} from tasks where {is_wanted_task} order by id limit :limit

-- name: tasks
select {task_columns} from tasks where id in (select value from json_each(:ids))

-- name: free_tasks
-- Open ones of a queue that nobody has.
select id from tasks indexed by tasks_open
where status = 'open' and queue = :queue and (lease_until is null or lease_until <= :at) order by id limit :limit

-- name: claim_task
update tasks set worker = :worker, lease_us = :lease_us, lease_until = :lease_until, beat_at = :at, claims = claims + 1,
    actor = :actor
where id = :id

-- name: hold_task
update tasks set
    worker = case when :keep then worker end, lease_until = case when :keep then :at + lease_us end, beat_at = :at,
    details = coalesce(:details, details), error = coalesce(:error, error), actor = :actor
where id = :id and status = 'open' and worker = :worker

-- name: record_columns
-- A record, in the order of the fields of kernel.stock.Record.
kind, name, version, digest, actor, at, body

-- name: insert_record
insert into records (kind, name, version, digest, actor, at, body)
values (:kind, :name, :version, :digest, :actor, :at, :body)

-- name: newest_record
select {record_columns} from records where kind = :kind and name = :name order by version desc limit 1

-- name: record
select {record_columns} from records where kind = :kind and name = :name and version = :version

-- name: records
select {record_columns} from records as newest
where kind = :kind and (:after is null or name > :after)
    and version = (select max(version) from records where kind = newest.kind and name = newest.name)
order by name limit :limit

-- name: record_versions
select {record_columns} from records
where (kind, name, version) > (:kind, :name, :version) and at >= :since order by kind, name, version limit :limit

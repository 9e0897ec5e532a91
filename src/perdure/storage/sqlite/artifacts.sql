-- The queries of artifacts. As in queries.sql, a comment with its name starts a query.

-- name: artifact_columns
-- An artifact without content, in the order of the fields of kernel.artifacts.Artifact.
id, run_id, name, type, form, media_type, size, digest, workflow, step, position, attempt, seq, number, state, version,
staged_at, published_at, chunks

-- name: visible
-- Published artifacts. If requested, also staged artifacts.
(state = 'published' or (:staged and state = 'staged'))

-- name: insert_artifact
-- Insert an artifact. If workflow code has already staged it, it stays unchanged.
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
-- Delete the chunks of an artifact that was never completed.
delete from artifact_chunks where artifact_id = :id and not exists (select 1 from artifacts where id = :id)

-- name: drop_stray_chunks
-- Delete a run's chunks that belong to no artifact.
delete from artifact_chunks where run_id = :run_id and artifact_id not in (select id from artifacts where run_id = :run_id)

-- name: having_artifacts
-- Those of these runs that have artifacts or chunks.
select value from json_each(:ids)
where exists (select 1 from artifacts where run_id = value) or exists (select 1 from artifact_chunks where run_id = value)

-- name: drop_artifacts
-- Delete the artifacts that a run has staged from an entry on.
delete from artifacts where run_id = :run_id and state <> 'published' and seq >= :first

-- name: outdate_artifacts
-- A run begins again. Its staged artifacts stay, and its code may stage more.
update artifacts set seq = seq - :lap where run_id = :run_id and state <> 'published'

-- name: move_artifacts
-- Set aside the staged artifacts of a run, or stage them again.
update artifacts set state = :state where run_id = :run_id and state <> 'published' and state <> :state

-- name: staged
-- The staged artifacts of a run, in the order of staging.
select id, name from artifacts where run_id = :run_id and state <> 'published'
order by seq, position = '', coalesce(number, 0), id

-- name: publish
update artifacts set
    state = 'published', published_at = :at,
    version = 1 + (select coalesce(max(known.version), 0) from artifacts as known
        where known.name = :name and known.version is not null and known.version < 4611686018427387904)
where id = :id

-- name: artifacts_within
-- Whether the run belongs to the runs of a list. If the list has no limit on runs, all runs do.
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
-- An artifact that is not set aside, with its content.
select {artifact_columns}, content from artifacts where id = :id and state <> 'aside'

-- name: artifact_version
select {artifact_columns}, content from artifacts where version is not null and name = :name and version = :version

-- name: newest_artifact
select {artifact_columns}, content from artifacts where version is not null and name = :name order by version desc limit 1

-- name: chunk
select data from artifact_chunks where artifact_id = :artifact_id and number = :number

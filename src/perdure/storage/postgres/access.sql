-- Tokens of the HTTP API and sessions of the dashboard.

-- name: token_columns
-- In the order of the fields of kernel.access.StoredToken.
name, version, digest, actor, at, used_at, body

-- name: insert_token
-- Insert a token if it is the next version of its name. The time of the last use is copied from the version before.
insert into perdure_tokens (name, version, digest, actor, at, used_at, body)
select :name::text, :version::bigint, :digest::text, :actor::text, :at::bigint,
    (select used_at from perdure_tokens where name = :name::text order by version desc limit 1), :body::text
where :version::bigint = 1 + coalesce((select max(version) from perdure_tokens where name = :name::text), 0)
on conflict do nothing returning version

-- name: token
select {token_columns} from perdure_tokens where name = :name order by version desc limit 1

-- name: tokens
select distinct on (name) {token_columns} from perdure_tokens
where :after::text is null or name > :after order by name, version desc limit :limit

-- name: token_versions
select {token_columns} from perdure_tokens
where (name, version) > (:after_name::text, :after_version::bigint) order by name, version limit :limit

-- name: use_token
update perdure_tokens set used_at = :at where name = :name and coalesce(used_at, 0) < :at
    and version = (select max(version) from perdure_tokens where name = :name)

-- name: session_columns
-- In the order of the fields of kernel.access.StoredSession.
id, until, actor, at, body

-- name: put_session
insert into perdure_sessions (id, until, actor, at, body) values (:id, :until, :actor, :at, :body) on conflict (id) do nothing

-- name: session
select {session_columns} from perdure_sessions where id = :id

-- name: end_session
delete from perdure_sessions where id = :id

-- name: purge_sessions
-- Delete expired sessions. The sessions that expired first are deleted first. Rows that another server is deleting at
-- this moment are skipped.
with over as (
    select id from perdure_sessions where until <= :at order by until limit :limit for update skip locked
), gone as (
    delete from perdure_sessions using over where perdure_sessions.id = over.id returning 1
)
select count(*) from gone

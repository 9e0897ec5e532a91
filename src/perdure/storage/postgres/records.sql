-- The queries of records. As in queries.sql, a comment with its name starts a query.

-- name: insert_record
-- Insert a record if it is the next version of its name.
insert into records (kind, name, version, digest, actor, at, body)
select :kind::text, :name::text, :version::bigint, :digest::text, :actor::text, :at::bigint, :body::text
where :version::bigint = 1 + coalesce((select max(version) from records where kind = :kind::text and name = :name::text), 0)
on conflict do nothing returning version

-- name: record_columns
-- A record, in the order of the fields of kernel.records.Record.
kind, name, version, digest, actor, at, body

-- name: newest_record
select {record_columns} from records where kind = :kind and name = :name order by version desc limit 1

-- name: record
select {record_columns} from records where kind = :kind and name = :name and version = :version

-- name: records
select distinct on (name) {record_columns} from records
where kind = :kind and (:after::text is null or name > :after) order by name, version desc limit :limit

-- name: record_versions
select {record_columns} from records
where (kind, name, version) > (:kind::text, :name::text, :version::bigint) and at >= :since::bigint order by kind, name, version limit :limit

-- Tokens of the HTTP API and sessions of the dashboard get tables of their own: they were records, as users' own are.

-- Each version of each token; the newest of a name counts.
create table perdure_tokens (
    name text not null,
    version integer not null,
    digest text not null,
    actor text not null,
    at integer not null,
    used_at integer,
    body text not null,
    primary key (name, version)
);
insert into perdure_tokens (name, version, digest, actor, at, body)
select name, version, digest, actor, at, body from records where kind = 'perdure.api-token';

create table perdure_sessions (
    id text primary key not null,
    until integer not null,
    actor text not null,
    at integer not null,
    body text not null
);
create index perdure_sessions_until on perdure_sessions (until);
-- A session lasted twelve hours, and had a second version once somebody had signed out.
insert into perdure_sessions (id, until, actor, at, body)
select name, at + 43200000000, actor, at, body from records as opened
where kind = 'perdure.dashboard-session' and version = 1
    and not exists (select 1 from records where kind = opened.kind and name = opened.name and version > 1);

delete from records where kind = 'perdure.dashboard-session';
delete from records where kind = 'perdure.api-token';
-- A server of an earlier Perdure that still runs looks here whether tokens are needed. This one is valid for nothing.
insert into records (kind, name, version, digest, actor, at, body)
select 'perdure.api-token', 'moved', 1, '', 'perdure', moved.at, '{"scope":"read","sha256":"","revoked":true}'
from (select max(at) as at from perdure_tokens) as moved where moved.at is not null;

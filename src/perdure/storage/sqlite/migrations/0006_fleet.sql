-- Versions of workflows; slots for the answers to mail, named by who sent it.

update engines set workflows = (
    select coalesce(json_group_array(json_array(value, '')), '[]') from json_each(engines.workflows)
);

alter table mail add column slot text;
create unique index mail_slot on mail (slot) where slot is not null;

drop table mail_replies;
create table mail_replies (
    slot text primary key not null,
    reply text not null,
    at integer not null
) without rowid;
create index mail_replies_at on mail_replies (at);

drop index runs_awake;
create index runs_awake on runs (owner, workflow, workflow_version, created_at, id)
    where (status = 'created' or status = 'running' or status = 'cancelling' or status = 'rolling_back');

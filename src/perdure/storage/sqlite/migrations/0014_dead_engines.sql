-- Engines that are dead are forgotten in time. `ended_at` is when that was first noticed by whoever forgets them.

alter table engines add column ended_at integer;
create index engines_living on engines (id) where alive;
create index engines_ended on engines (ended_at) where not alive;
create index engines_code on engines (workflows, epoch);

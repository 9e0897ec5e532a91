-- Who asked for the last claim, heartbeat or release of a task: the worker's name says what it calls itself.

alter table tasks add column actor text not null default '';

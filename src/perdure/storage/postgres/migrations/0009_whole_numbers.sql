-- A whole number that a wait chooses by, or that an event has, is written as an integer from now on: 5.0 as 5. So that
-- what waits already still finds what is sent now, and the other way round, numbers that are stored get that form too.
-- Texts among the fields are quoted once more, so that none of them looks like a number.

update waits set filter = regexp_replace(filter, ',"(-?[0-9]+)\.0"\]', ',"\1"]', 'g')
where kind = 'event' and filter ~ ',"-?[0-9]+\.0"\]';

update events set fields = regexp_replace(fields, ':"(-?[0-9]+)\.0"([,}])', ':"\1"\2', 'g')
where fields ~ ':"-?[0-9]+\.0"[,}]';

update dead_letters set fields = regexp_replace(fields, ':"(-?[0-9]+)\.0"([,}])', ':"\1"\2', 'g')
where fields ~ ':"-?[0-9]+\.0"[,}]';

-- A whole number that a wait chooses by, or that an event has, is written as an integer from now on: 5.0 as 5. So that
-- what waits already still finds what is sent now, and the other way round, numbers that are stored get that form too.

update waits set filter = (
    select json_group_array(json_array(
        json_extract(pair.value, '$[0]'),
        case
            when json_extract(pair.value, '$[1]') glob '*[0-9].0' and json_extract(pair.value, '$[1]') not glob '*[^-0-9.]*'
            then substr(json_extract(pair.value, '$[1]'), 1, length(json_extract(pair.value, '$[1]')) - 2)
            else json_extract(pair.value, '$[1]')
        end
    ))
    from json_each(waits.filter) as pair
) where kind = 'event' and filter glob '*[0-9].0"]*';

update events set fields = (
    select json_group_object(
        field.key,
        case
            when field.value glob '*[0-9].0' and field.value not glob '*[^-0-9.]*'
            then substr(field.value, 1, length(field.value) - 2)
            else field.value
        end
    )
    from json_each(events.fields) as field
) where fields glob '*[0-9].0"*';

update dead_letters set fields = (
    select json_group_object(
        field.key,
        case
            when field.value glob '*[0-9].0' and field.value not glob '*[^-0-9.]*'
            then substr(field.value, 1, length(field.value) - 2)
            else field.value
        end
    )
    from json_each(dead_letters.fields) as field
) where fields glob '*[0-9].0"*';

-- fields_of(entry): the fields of a stream entry, by name.
-- matches(fields, group, reason, id): whether a dead job is one that is looked for; "" means any.
local function fields_of(entry)
  local fields = {}
  for n = 1, #entry[2], 2 do fields[entry[2][n]] = entry[2][n + 1] end
  return fields
end
local function matches(fields, group, reason, id)
  return (group == '' or fields['group'] == group) and (reason == '' or fields['reason'] == reason)
    and (id == '' or fields['id'] == id)
end

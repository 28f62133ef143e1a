-- HAProxy's side of limits.lua: sets `txn.examined`, and `txn.refused` to the reason if a request must not pass.

core.register_action("limits", {"http-req"}, function(transaction)
  local fetch = transaction.sf
  -- All values of the header, as one text: HAProxy would read the last of several, and Triton reads the first.
  local found = transaction.http:req_get_headers()["inference-header-content-length"]
  local stated = found and table.concat(found, ",", 0)
  local depth = tonumber(os.getenv("DOOR_MOST_DEPTH"))
  local reason = problem_of(fetch:path(), fetch:req_body() or "", stated, depth)
  if reason then transaction:set_var("txn.refused", "refused by the front door: " .. reason) end
  transaction:set_var("txn.examined", true)
end)

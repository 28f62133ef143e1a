-- HAProxy's side of limits.lua: sets `txn.examined`, and `txn.refused` to the reason if a request must not pass.

core.register_action("limits", {"http-req"}, function(transaction)
  local stated = transaction.sf:req_hdr("inference-header-content-length")
  local body = transaction.sf:req_body() or ""
  local depth = tonumber(os.getenv("DOOR_MOST_DEPTH"))
  local reason = problem_of(body, stated ~= "" and stated or nil, depth)
  if reason then transaction:set_var("txn.refused", "refused by the front door: " .. reason) end
  transaction:set_var("txn.examined", true)
end)

"""Replicas of models on one machine or several, behind a front door: started, replaced, scaled and drained."""

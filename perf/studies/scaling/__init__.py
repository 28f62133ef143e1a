"""Does scaling on pending requests need fewer replicas than the rules of the field, and is the simulation right?"""

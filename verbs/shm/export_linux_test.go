package shm

// GoByBoard makes CQs use boards whatever the number of their QPs, and check only QPs whose bit is
// set.
func GoByBoard() { fewQPs, lookAnyway = 0, 1<<63 }

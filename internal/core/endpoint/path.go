package endpoint

// Path is a way to the peer: what a driver offers. Its methods are called with the lock of
// the endpoint held: they do not block, and do not call the endpoint.
//
// Frames arrive in the order in which they were posted, none twice, until the path breaks;
// the driver then says [Endpoint.Broken], once. It hands what arrives to [Endpoint.Arrived],
// one frame at a time, and calls [Endpoint.Quiet] when for the moment nothing more has.
type Path interface {
	// Post sends a frame. It answers false, and has done nothing, if there is no room now;
	// the driver then calls [Endpoint.Pump] when there is. The payload stays as it is until
	// the message has been taken or the path fenced.
	Post(h *Header, payload []byte) bool

	// Put writes bytes to memory of the peer, of which the layouts have the same number,
	// and then posts a frame that arrives when all of them can be seen there.
	Put(from *Local, to *Remote, h *Header, payload []byte) bool

	// Get reads bytes from memory of the peer. When all are there the driver calls
	// [Endpoint.Got] with the token.
	Get(into *Local, from *Remote, token uint64) bool

	// Map returns memory of the peer that this process can load and store, for as long as
	// the path is open, or nil.
	Map(r Region) []byte

	// Fence ends the path: when it has returned, no frame is handed over that has not been
	// so far, and nothing that the peer sends on it, or that this end has asked for by Get,
	// changes memory of this process.
	Fence()
}

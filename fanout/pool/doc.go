// Package pool hands chunks of data to workers that come and go.
//
//	s, err := pool.Listen(ctx, ":7000", pool.Config{Secret: secret})
//	err = s.Send(ctx, chunk)            // waits while too many are in flight
//	r, err := s.Receive(ctx)            // the next result; io.EOF after the last
//	err = s.End(ctx)                    // no more chunks
//
//	w, err := pool.Join(ctx, pool.Config{Secret: secret}, "host:7000", "other:7000")
//	k, err := w.Receive(ctx)            // io.EOF when all suppliers have ended
//	err = k.Done(result)
//
// A supplier listens on an address; a worker that knows the secret can join at any time, ask for
// chunks, and leave. The supplier gets the results in the order of the chunks, each once, even if
// workers die.
//
// Package fanout is for the ranks of a job, whose number is fixed, and moves chunks over
// shared memory and RDMA. This package uses TCP.
//
// # Bounds
//
// A supplier has [Config.Chunks] places, which bound its memory. A chunk occupies a place from
// Send until its result has been released, so Send waits when results are not received. A
// worker has at most [Config.Window] chunks of each of its suppliers.
//
// # Death
//
// When the connection of a worker ends, its chunks go to others, before new ones; results that
// it has sent count. A chunk is given up after [Config.Attempts] workers were lost while they
// worked on it; Receive then returns an error in its place. Chunks that only waited at those
// workers are not given up. A silent host is detected in about 20 seconds; on other systems than
// Linux, TCP takes minutes while data is on its way to it. When a supplier dies, Receive of its
// workers returns an error once; a worker of several suppliers goes on with the others.
//
// # Authentication
//
// Before anything else, both ends prove to each other that they know the secret (HMAC-SHA256
// over nonces of both). Nothing is encrypted, and later data is not authenticated: use a
// tunnel if others can read or change the traffic between the hosts.
package pool

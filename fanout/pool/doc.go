// Package pool hands chunks of data to workers that come and go: a supplier listens on an
// address, and whoever knows the secret may join at any time, ask for chunks, and leave.
// Their results come back to the supplier in the order of the chunks, each once, whatever
// happens to workers.
//
//	s, err := pool.Listen(ctx, ":7000", pool.Config{Secret: secret})
//	err = s.Send(ctx, chunk)            // waits while too many are under way
//	r, err := s.Receive(ctx)            // the next result; io.EOF after the last
//	err = s.End(ctx)                    // no more chunks
//
//	w, err := pool.Join(ctx, pool.Config{Secret: secret}, "host:7000", "other:7000")
//	k, err := w.Receive(ctx)            // io.EOF when all suppliers have ended
//	err = k.Done(result)
//
// Package fanout is for the ranks of a job, whose number is fixed, and moves chunks over
// shared memory and RDMA; here they go over TCP.
//
// # Bounds
//
// A supplier has [Config.Chunks] places. A chunk has one from Send until its result has
// been released: so Send waits for whoever receives the results, and memory is that of
// the places. A worker has [Config.Window] chunks at most of each of its suppliers.
//
// # Death
//
// The chunks of a worker whose connection ends go to others, before new ones; what it had
// answered counts. A chunk that [Config.Attempts] workers go with while they work on it is
// given up, which Receive says in its place; those that waited beside it are not blamed. A host that falls silent is found out by the
// keep-alives of TCP, in some 20 seconds. A supplier that dies is an error of its workers'
// Receive, once; those of several suppliers go on with the others.
//
// # Who may join
//
// Both ends prove to each other that they know the secret before anything else counts
// (HMAC-SHA256 over nonces of both). Nothing is encrypted: what is secret, or may be
// rewritten between the hosts, belongs into a tunnel.
package pool

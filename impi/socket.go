package impi

// socket is a connected TCP socket that never blocks.
type socket interface {
	// readv and writev return errAgain if there is nothing to read or no room, and io.EOF at the
	// end.
	readv(bufs [][]byte) (int, error)
	writev(bufs [][]byte) (int, error)
	fd() int
	close()
}

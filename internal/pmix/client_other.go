//go:build !linux || !cgo

package pmix

// Built says that this program can call the library.
const Built = false

// Open always fails: there is no way to call the library.
func Open(string) error { return ErrWithout }

// Client is that of the builds that can call the library.
type Client struct{}

// Init always fails.
func Init() (*Client, error) { return nil, ErrWithout }

// Finalize always fails.
func (*Client) Finalize() error { return ErrWithout }

// Place always fails.
func (*Client) Place() (Place, error) { return Place{}, ErrWithout }

// Put always fails.
func (*Client) Put(string, string) error { return ErrWithout }

// Fence always fails.
func (*Client) Fence() error { return ErrWithout }

// Get always fails.
func (*Client) Get(int, string) (string, error) { return "", ErrWithout }

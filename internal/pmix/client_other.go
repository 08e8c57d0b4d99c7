//go:build !linux || !cgo

package pmix

import "errors"

// Built says that this program can call the library.
const Built = false

var errWithout = errors.New("this program is built without cgo, or not for Linux: PMIx needs both")

// Open always fails: there is no way to call the library.
func Open(string) error { return errWithout }

// Client is that of the builds that can call the library.
type Client struct{}

// Init always fails.
func Init() (*Client, error) { return nil, errWithout }

// Finalize always fails.
func (*Client) Finalize() error { return errWithout }

// Place always fails.
func (*Client) Place() (Place, error) { return Place{}, errWithout }

// Put always fails.
func (*Client) Put(string, string) error { return errWithout }

// Fence always fails.
func (*Client) Fence() error { return errWithout }

// Get always fails.
func (*Client) Get(int, string) (string, error) { return "", errWithout }

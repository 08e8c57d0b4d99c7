//go:build !unix

package impi

// controls watches the TCP connections of links that carry their packets elsewhere.
type controls struct{ carriers []*rcCarrier }

func newControls(*engine) (*controls, error) { return nil, errNoSockets }

func (s *controls) run()   {}
func (s *controls) end()   {}
func (s *controls) close() {}

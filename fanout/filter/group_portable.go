//go:build !linux

package filter

// reap waits for the process and ends its group. Between the two, in theory, the ID of an
// empty group could be reused.
func (p *child) reap() {
	p.cmd.Wait() // for which an exit status other than 0 is an error
	p.mu.Lock()
	p.reaped = true
	killGroup(p.cmd.Process)
	p.mu.Unlock()
	close(p.done)
}

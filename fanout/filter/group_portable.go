//go:build !linux

package filter

// reap waits for the process and ends its group. In the moment between the two the
// number of an empty group could, in theory, be given to another one.
func (p *child) reap() {
	p.cmd.Wait() // for which an exit status other than 0 is an error
	p.mu.Lock()
	p.reaped = true
	killGroup(p.cmd.Process)
	p.mu.Unlock()
	close(p.done)
}

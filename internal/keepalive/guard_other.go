//go:build !linux

package keepalive

import "time"

// Watch watches nothing: only Linux tells what is unacknowledged.
func Watch(Socket, time.Duration, func(error)) {}

// Watchable says whether [Watch] sees anything of a socket.
func Watchable(Socket) bool { return false }

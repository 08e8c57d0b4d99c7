//go:build !linux

package roce

func prepare() {}

var acts map[string]func(args []string) error

//go:build !linux

package reach

// asked returns nothing: other systems list their interfaces.
func asked() []Interface { return nil }

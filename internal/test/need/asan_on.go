//go:build asan

package need

// ASan reports whether AddressSanitizer watches this program.
const ASan = true

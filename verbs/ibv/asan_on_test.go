//go:build linux && cgo && asan

package ibv_test

const asan = true

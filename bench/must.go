package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// failure is an error on its way to the catch around it.
type failure struct{ error }

// must ends what catch surrounds, if there is an error. Setting up and carrying out a
// measurement is one call after the other, of which none makes sense without the ones before,
// and the first error ends the job at all ranks: what is to be done reads better without that.
func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must1 is v, where there is no error.
func must1[T any](v T, err error) T {
	must(err)
	return v
}

// must2 is v and u, where there is no error.
func must2[T, U any](v T, u U, err error) (T, U) {
	must(err)
	return v, u
}

// try is the error that f ends with, for what has to be done all the same.
func try(f func()) (err error) {
	defer catch(&err)
	f()
	return nil
}

// during, deferred, says in an error that passes by what was being done.
func during(what func() string) {
	switch p := recover().(type) {
	case nil:
	case failure:
		panic(failure{fmt.Errorf("%s: %w", what(), p.error)})
	default:
		panic(p)
	}
}

// undo, deferred, does something where an error passes by.
func undo(f func()) {
	if p := recover(); p != nil {
		f()
		panic(p)
	}
}

// catch, deferred, makes the error of a must that of the function.
func catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = p.error
	default:
		panic(p)
	}
}

// caught is a command that must.
func caught(f func(cmd *cobra.Command, args []string)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return try(func() { f(cmd, args) }) }
}

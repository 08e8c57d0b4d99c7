package main

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

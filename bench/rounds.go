package main

// rounds are what a run measures: all its specs once in each round, so that what
// changes in the machine meanwhile is met by all of them.
type rounds struct {
	specs []spec
	count int
}

// steps is the number of measurements, for the progress line.
func (r *rounds) steps() int { return len(r.specs) * r.count }

// measureBy has every measurement taken as often as there are rounds.
func (r *rounds) measureBy(round func(*measurement) error) ([]*measurement, error) {
	ms := make([]*measurement, len(r.specs))
	for i, s := range r.specs {
		ms[i] = newMeasurement(s)
	}
	for range r.count {
		for _, m := range ms {
			if err := round(m); err != nil {
				return nil, err
			}
		}
	}
	return ms, nil
}

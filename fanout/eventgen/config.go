// Package eventgen makes event files of ring items for tests and measurements: a run with a
// given number of events, with given sizes, sources and rate, whole or damaged.
//
//	summary, err := eventgen.Write(ctx, file, eventgen.Config{Events: 1000}, false)
//	g, err := eventgen.New(config) // to make the items one by one
//	for g.Next(&item) {
//
// The output depends only on the [Config]. A file has RING_FORMAT and BEGIN_RUN, without body headers; then the events, with occasional
// PERIODIC_SCALERS without body header; then END_RUN. The timestamps count nanoseconds from the
// beginning of the run. The body of an event is its 64-bit number, little-endian, starting at 0
// in each file, followed by noise.
package eventgen

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Config says what a file contains.
type Config struct {
	Version     ring.Version // 0: V12
	Seed        uint64       // each seed makes another file of the same kind
	Run         uint32       // number of the run
	Events      int          // number of PHYSICS_EVENT items; 0: none
	Sources     int          // events come from so many sources, at random; 0: one
	FirstSource uint32       // the lowest source id; it is mixed into Seed
	Rate        float64      // events/s of all sources together, with exponential intervals; 0: DefaultRate
	Size        Size         // of the bodies of events
	Extension   int          // bytes of extension in the body headers of events
	NullEvery   int          // one in so many events has the null timestamp; 0: none
	ScalerEvery int          // a PERIODIC_SCALERS item follows every so many events; 0: none
	Damage      Damage       // what is wrong with the file
	DamageItem  int          // the item that is damaged, from 0; without effect if there are fewer
}

// DefaultRate is the rate of a Config with rate 0, in events/s.
const DefaultRate = 10_000

// ErrConfig is the error of an invalid Config.
var ErrConfig = errors.New("eventgen: invalid configuration")

// check returns the Config with its defaults filled in.
func (c Config) check() (Config, error) {
	wrong := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	if c.Version == 0 {
		c.Version = ring.V12
	}
	if c.Sources == 0 {
		c.Sources = 1
	}
	if c.Rate == 0 {
		c.Rate = DefaultRate
	}
	switch {
	case !c.Version.Valid():
		return wrong("version %v, want 11 or 12", c.Version)
	case c.Events < 0 || c.Extension < 0 || c.NullEvery < 0 || c.ScalerEvery < 0 || c.DamageItem < 0:
		return wrong("Events, Extension, NullEvery, ScalerEvery and DamageItem must not be negative")
	case c.Sources < 0 || int64(c.Sources)-1 > math.MaxUint32-int64(c.FirstSource):
		return wrong("%d sources from source id %d on are negative or exceed 32 bits", c.Sources, c.FirstSource)
	case !(c.Rate >= 1e-6 && c.Rate <= 1e12):
		return wrong("rate of %v events/s, want 1e-6 to 1e12", c.Rate)
	case c.Extension > maxSize:
		return wrong("extension of %d bytes, want %d at most", c.Extension, maxSize)
	case c.Damage < Whole || c.Damage > LyingHeader:
		return wrong("unknown kind of damage %d", c.Damage)
	}
	return c, nil
}

// Damage is a way in which a file is broken.
type Damage int

// Kinds of damage. All but Cut leave the bytes after the item unchanged.
const (
	Whole       Damage = iota // the file is not damaged
	Cut                       // the file ends in the middle of the item
	TooSmall                  // the item says that it has 7 bytes
	TooLarge                  // the item says that it has 4 GiB
	LyingHeader               // the item says that its body header has 8 bytes
)

var damageNames = [...]string{"none", "cut", "small", "large", "header"}

// String returns the name that Set takes.
func (d Damage) String() string {
	if d >= 0 && int(d) < len(damageNames) {
		return damageNames[d]
	}
	return fmt.Sprintf("damage %d", int(d))
}

// DamageNames returns the names of all kinds of damage, in the order of their values.
func DamageNames() []string { return damageNames[:] }

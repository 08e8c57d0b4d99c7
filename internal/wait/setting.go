package wait

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Mode is what a wait does before it sleeps.
type Mode uint8

const (
	Adaptive Mode = iota // what experience says
	Spinning             // spin
	Yielding             // yield the CPU to other processes
	Sleeping             // look some times, no more
)

// Setting is how a user wants waits to pass.
type Setting struct {
	Mode Mode
	For  time.Duration // of Spinning, Yielding, Sleeping before it sleeps; 0: for ever, of Sleeping: not at all
}

// EnvWait is the environment variable with a setting.
const EnvWait = "SLUICE_WAIT"

// SettingOf is what a program says, or else its environment.
func SettingOf(program, env string) (Setting, error) {
	if program != "" || env == "" {
		s, err := parse(program)
		if err != nil {
			err = fmt.Errorf("wait as %w", err)
		}
		return s, err
	}
	s, err := parse(env)
	if err != nil {
		err = fmt.Errorf("%s=%w", EnvWait, err)
	}
	return s, err
}

// parse parses spin, yield or sleep, followed by a colon and a duration, if any (time.ParseDuration).
// An empty text is Adaptive.
func parse(text string) (s Setting, err error) {
	if text == "" {
		return s, nil
	}
	mode, bound, bounded := strings.Cut(text, ":")
	switch mode {
	case "spin":
		s.Mode = Spinning
	case "yield":
		s.Mode = Yielding
	case "sleep":
		s.Mode = Sleeping
	default:
		return s, fmt.Errorf("%q: want spin, yield or sleep, optionally with a duration: spin:50us", text)
	}
	if bounded {
		if s.For, err = time.ParseDuration(bound); err != nil || s.For <= 0 {
			return Setting{}, fmt.Errorf("%q: %q is not a duration; want one such as 50us", text, bound)
		}
	}
	return s, nil
}

// most is for how many nanoseconds to go on before sleeping.
func (s Setting) most() int64 {
	if s.For == 0 && s.Mode != Sleeping {
		return math.MaxInt64
	}
	return int64(s.For)
}

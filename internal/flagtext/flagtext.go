// Package flagtext says in one sentence what is wrong with the value of a flag. It does not depend on
// the package that parses flags, which the library does not need.
package flagtext

import (
	"errors"
	"fmt"
	"strconv"
)

// wanted says what flags of a type take, by the name that pflag gives to the type.
var wanted = map[string]string{
	"bool":     "true or false",
	"int":      "a whole number",
	"int64":    "a whole number",
	"uint32":   "a whole number, not below 0",
	"uint64":   "a whole number, not below 0",
	"float64":  "a number",
	"duration": "a duration with its unit, such as 500ms or 10s",
}

// Invalid returns the error of a flag that does not take value. The cause says what the flag wants,
// unless the kind of the flag, pflag's Value.Type, does.
func Invalid(name, short, value, kind string, cause error) error {
	name = "--" + name
	if short != "" {
		name = "-" + short + ", " + name
	}
	if want := wanted[kind]; want != "" {
		if errors.Is(cause, strconv.ErrRange) {
			want += ", and not such a large one"
		}
		return fmt.Errorf("invalid value %q of %s: want %s", value, name, want)
	}
	return fmt.Errorf("invalid value %q of %s: %w", value, name, cause)
}

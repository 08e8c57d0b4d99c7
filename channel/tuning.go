package channel

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// EnvTuningFile is the variable of the environment that names a file of settings, as
// "bench tune --file" writes it: NAME=value on each line, of the variables that
// [WithTuning] takes and [EnvTransport]; what is behind # is a comment, and so are empty lines. A variable of the environment
// overrides a line of the file, and WithTuning both. All ranks must end up with the same.
// A file that cannot be read, or has something else in it, is a [*TuningFileError].
const EnvTuningFile = "SLUICE_TUNING_FILE"

// TuningFileError says what is wrong with the file that [EnvTuningFile] names. It is
// [ErrInvalid], and wraps what the system says where the file cannot be read.
type TuningFileError struct {
	File string
	Line int // from 1; 0: the file as a whole
	Err  error
}

func (e *TuningFileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%v: %s=%q: %v", ErrInvalid, EnvTuningFile, e.File, e.Err)
	}
	return fmt.Sprintf("%v: %s=%q: line %d: %v", ErrInvalid, EnvTuningFile, e.File, e.Line, e.Err)
}

// Unwrap returns [ErrInvalid] and the cause.
func (e *TuningFileError) Unwrap() []error { return []error{ErrInvalid, e.Err} }

// maxTuningFile bounds a file of settings: ten lines, and what is said about them.
const maxTuningFile = 64 << 10

// readTuningFile reads the file that the environment names; none where it names none.
func readTuningFile(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &TuningFileError{File: path, Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTuningFile+1))
	if err == nil && len(b) > maxTuningFile {
		err = fmt.Errorf("more than %d bytes", maxTuningFile)
	}
	if err != nil {
		return nil, &TuningFileError{File: path, Err: err}
	}
	return parseTuning(path, string(b))
}

func parseTuning(path, text string) (map[string]string, error) {
	given, names := map[string]string{}, append(settings(), EnvTransport)
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		_, twice := given[name]
		switch {
		case !ok:
			return nil, &TuningFileError{path, n, fmt.Errorf("%.100q, want NAME=value", line)}
		case !slices.Contains(names, name):
			return nil, &TuningFileError{path, n, fmt.Errorf("no setting %.100q; there are %q", name, names)}
		case twice:
			return nil, &TuningFileError{path, n, fmt.Errorf("%s twice", name)}
		}
		// Each by itself: so the line with what cannot be meant is known.
		alone := func(v string) string {
			if v == name {
				return value
			}
			return ""
		}
		_, err := coll.ParseSettings(alone)
		if err == nil {
			_, err = parseRoutes(alone)
		}
		if err != nil {
			return nil, &TuningFileError{path, n, err}
		}
		given[name] = value
	}
	return given, nil
}

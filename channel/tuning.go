package channel

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// EnvTuningFile is the environment variable that names a file of settings, as written
// by "bench tune --file". Each line is NAME=value, where NAME is a variable that
// [WithTuning] accepts or [EnvTransport]; empty lines and text after # are ignored. The
// environment overrides the file, and WithTuning overrides both. All ranks must end up
// with the same settings. A file that cannot be read or parsed is a [*TuningFileError].
const EnvTuningFile = "SLUICE_TUNING_FILE"

// TuningFileError describes an error in the file that [EnvTuningFile] names. It wraps
// [ErrInvalid] and, if the file cannot be read, the system error.
type TuningFileError struct {
	File string
	Line int // from 1; 0 for the file as a whole
	Err  error
}

// Error returns the variable, the file, the line and the cause as text.
func (e *TuningFileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%v: %s=%q: %v", ErrInvalid, EnvTuningFile, e.File, e.Err)
	}
	return fmt.Sprintf("%v: %s=%q: line %d: %v", ErrInvalid, EnvTuningFile, e.File, e.Line, e.Err)
}

// Unwrap returns [ErrInvalid] and the cause.
func (e *TuningFileError) Unwrap() []error { return []error{ErrInvalid, e.Err} }

// maxTuningFile bounds the size of the file: ten lines, with comments.
const maxTuningFile = 64 << 10

// Environment returns the values of the variables that set up channels: those of the environment, or
// else of the file that [EnvTuningFile] names, which is read once. The error is a [*TuningFileError].
func Environment() (get func(name string) string, err error) {
	file, err := readTuningFile(os.Getenv(EnvTuningFile))
	return func(name string) string { return cmp.Or(os.Getenv(name), file[name]) }, err
}

// readTuningFile reads the file named by the environment; an empty path means no
// settings.
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
		err = fmt.Errorf("file has more than %d bytes", maxTuningFile)
	}
	if err != nil {
		return nil, &TuningFileError{File: path, Err: err}
	}
	return parseTuning(path, string(b))
}

func parseTuning(path, text string) (map[string]string, error) {
	given, names := map[string]string{}, append(settingNames(), EnvTransport)
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
			return nil, &TuningFileError{path, n, fmt.Errorf("unknown setting %.100q; known settings: %q", name, names)}
		case twice:
			return nil, &TuningFileError{path, n, fmt.Errorf("%s is set twice", name)}
		}
		// Parse each setting by itself, so that an error names its line.
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

package coll

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrSettings is a setting that cannot be meant.
var ErrSettings = errors.New("coll: invalid setting")

// SettingError names the variable and its value.
type SettingError struct {
	Variable, Value string
	Reason          string
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("coll: %s=%q: %s", e.Variable, e.Value, e.Reason)
}

// Unwrap returns [ErrSettings].
func (e *SettingError) Unwrap() error { return ErrSettings }

// The variables of the environment that [ParseSettings] reads. The first two have
// the names that IMPI 0.0 gives to what is agreed (C_COLL_XSIZE, C_COLL_MAXLINEAR).
// A value of -1, or none, is the default.
const (
	EnvXSize        = "COLL_XSIZE"
	EnvMaxLinear    = "COLL_MAXLINEAR"
	EnvBlock        = "SLUICE_COLL_BLOCK"
	EnvRingBlock    = "SLUICE_COLL_RING_BLOCK"
	EnvPipeline     = "SLUICE_COLL_PIPELINE"
	EnvSegment      = "SLUICE_COLL_SEGMENT"
	EnvScatterBlock = "SLUICE_COLL_SCATTER_BLOCK"
	EnvBruckBlock   = "SLUICE_COLL_BRUCK_BLOCK"
	EnvPairBlock    = "SLUICE_COLL_PAIR_BLOCK"
	EnvAlgorithm    = "SLUICE_COLL_ALGORITHM"
)

// Settings are the values from which [Settings.Choose] takes the algorithm. All
// members of a job must have the same ones. The zero value is none; see
// [DefaultSettings].
type Settings struct {
	// XSize is the bytes of a vector from which the algorithms for long ones are
	// used. 1024, as IMPI says.
	XSize int
	// MaxLinear is the members up to which short collectives are linear. Between
	// hosts, members are hosts. 4, as IMPI says.
	MaxLinear int

	// Block is the least bytes of a block for which halving a long vector down to a
	// block for each member pays: it has twice the messages of doubling, and moves
	// and combines the bytes 2 times in place of log2 n. XSize/16: up to 16 members,
	// long is what is of XSize.
	Block int
	// RingBlock is the bytes of a block from which blocks go round a ring. A ring
	// has 2(n-1) messages one after the other in place of 2 log2 n, and moves
	// fewer bytes where n is no power of two. 256·XSize: on tcp a ring gains
	// nothing below 2 MiB (bench tune), and by the model at 64 hosts it
	// takes twice the time of halving at 16 KiB.
	RingBlock int
	// Pipeline is the bytes from which vectors pass a chain by segments, if they are
	// more than the members: a chain moves each byte once, the others twice.
	// 2048·XSize: below, chains of 4 ranks took longer than trees on tcp (bench tune).
	Pipeline int
	// Segment is the bytes of a segment, for [Shape].Segment. 32·XSize: a segment takes longer than the
	// start of its message, and is in the cache when it is passed on.
	Segment int
	// ScatterBlock is the bytes of a block from which a broadcast is a scatter and an
	// allgather: it has up to n messages one after the other, and moves the vector
	// twice in place of log2 n times. XSize/4: by the model 1 MiB goes to 4096 hosts in a
	// fifth of the time of a tree (bench scale).
	ScatterBlock int
	// BruckBlock is the bytes of a block of an alltoall from which it goes straight
	// to its member, and not by way of others, log2 n times as often. XSize/4.
	BruckBlock int
	// PairBlock is the bytes of a block of an alltoall from which members exchange
	// with one at a time, so that receivers are not overrun. 32·XSize.
	PairBlock int

	// Force is the algorithm of each kind, wherever it is possible; [Auto] leaves
	// the choice. Not part of what Derive sets.
	Force [kinds]Algorithm
}

const (
	defaultXSize     = 1024 // IMPI 0.0, C_COLL_XSIZE
	defaultMaxLinear = 4    // IMPI 0.0, C_COLL_MAXLINEAR
	mostBytes        = 1 << 30
	mostMembers      = 1 << 20
)

// DefaultSettings are those without any variable set.
func DefaultSettings() Settings { return DeriveSettings(defaultXSize, defaultMaxLinear) }

// DeriveSettings sets the finer thresholds from the two that IMPI names.
func DeriveSettings(xsize, maxLinear int) Settings {
	x := int64(xsize)
	most := func(n int64) int { return int(max(min(n, mostBytes), 0)) }
	return Settings{
		XSize:        xsize,
		MaxLinear:    maxLinear,
		Block:        most(x / 16),
		RingBlock:    most(256 * x),
		Pipeline:     most(2048 * x),
		Segment:      max(most(32*x), 64),
		ScatterBlock: most(x / 4),
		BruckBlock:   most(x / 4),
		PairBlock:    most(32 * x),
	}
}

// Variables are the names of all variables that [ParseSettings] reads.
func Variables() []string {
	var s Settings
	var names []string
	for _, n := range s.numbers() {
		names = append(names, n.variable)
	}
	return append(names, EnvAlgorithm)
}

// number is one value of the settings by its variable.
type number struct {
	variable    string
	value       *int
	least, most int
}

func (s *Settings) numbers() []number {
	return []number{
		{EnvXSize, &s.XSize, 0, mostBytes},
		{EnvMaxLinear, &s.MaxLinear, 0, mostMembers},
		{EnvBlock, &s.Block, 0, mostBytes},
		{EnvRingBlock, &s.RingBlock, 0, mostBytes},
		{EnvPipeline, &s.Pipeline, 0, mostBytes},
		{EnvSegment, &s.Segment, 1, mostBytes},
		{EnvScatterBlock, &s.ScatterBlock, 0, mostBytes},
		{EnvBruckBlock, &s.BruckBlock, 0, mostBytes},
		{EnvPairBlock, &s.PairBlock, 0, mostBytes},
	}
}

// Validate says what cannot be meant: [SettingError], or nil. Bytes are at most
// 2^30, members at most 2^20.
func (s Settings) Validate() error {
	for _, n := range s.numbers() {
		if *n.value < n.least || *n.value > n.most {
			return &SettingError{n.variable, strconv.Itoa(*n.value), fmt.Sprintf("not within %d and %d", n.least, n.most)}
		}
	}
	for k, a := range s.Force {
		if a != Auto && !slices.Contains(algorithmsOf[k], a) {
			return &SettingError{EnvAlgorithm, fmt.Sprintf("%v=%v", Kind(k), a), notOf(Kind(k))}
		}
	}
	return nil
}

func notOf(k Kind) string {
	names := make([]string, len(algorithmsOf[k]))
	for i, a := range algorithmsOf[k] {
		names[i] = a.String()
	}
	return fmt.Sprintf("no algorithm of %v; there are %s", k, strings.Join(names, ", "))
}

// ParseSettings reads the variables of the environment through getenv. What is not
// set, or is -1, has the default; that of the finer thresholds is derived from the
// first two. [EnvAlgorithm] is a list of kind=algorithm with commas between them:
// "allreduce=ring,bcast=binomial". Errors: [SettingError].
func ParseSettings(getenv func(string) string) (Settings, error) {
	var given Settings
	set := given.numbers()
	for _, n := range set {
		*n.value = -1
		text := strings.TrimSpace(getenv(n.variable))
		if text == "" {
			continue
		}
		v, err := strconv.Atoi(text)
		switch {
		case err != nil:
			return Settings{}, &SettingError{n.variable, text, "not a number"}
		case v != -1 && (v < n.least || v > n.most):
			return Settings{}, &SettingError{n.variable, text, fmt.Sprintf("not within %d and %d, nor -1", n.least, n.most)}
		}
		*n.value = v
	}
	if given.XSize < 0 {
		given.XSize = defaultXSize
	}
	if given.MaxLinear < 0 {
		given.MaxLinear = defaultMaxLinear
	}
	s := DeriveSettings(given.XSize, given.MaxLinear)
	for i, n := range s.numbers() {
		if v := *set[i].value; v >= 0 {
			*n.value = v
		}
	}
	if err := s.parseForce(getenv(EnvAlgorithm)); err != nil {
		return Settings{}, err
	}
	return s, nil
}

func (s *Settings) parseForce(list string) error {
	if strings.TrimSpace(list) == "" {
		return nil
	}
	seen := map[Kind]bool{}
	for item := range strings.SplitSeq(list, ",") {
		kind, algorithm, found := strings.Cut(strings.TrimSpace(item), "=")
		k, known := ParseKind(strings.TrimSpace(kind))
		a, any := ParseAlgorithm(strings.TrimSpace(algorithm))
		reason := ""
		switch {
		case !found:
			reason = fmt.Sprintf("%q is not kind=algorithm", item)
		case !known:
			reason = fmt.Sprintf("no kind %q; there are %s", kind, strings.Join(kindNames[:], ", "))
		case seen[k]:
			reason = fmt.Sprintf("%v twice", k)
		case !any || a != Auto && !slices.Contains(algorithmsOf[k], a):
			reason = fmt.Sprintf("%q is %s", algorithm, notOf(k))
		}
		if reason != "" {
			return &SettingError{EnvAlgorithm, list, reason}
		}
		seen[k] = true
		s.Force[k] = a
	}
	return nil
}

// Environ returns the variables that give these settings, as NAME=value, without
// those that have the value which they have unset.
func (s Settings) Environ() []string {
	var env []string
	without := DeriveSettings(s.XSize, s.MaxLinear)
	without.XSize, without.MaxLinear = defaultXSize, defaultMaxLinear
	defaults := without.numbers()
	for i, n := range s.numbers() {
		if *n.value != *defaults[i].value {
			env = append(env, fmt.Sprintf("%s=%d", n.variable, *n.value))
		}
	}
	var force []string
	for k, a := range s.Force {
		if a != Auto {
			force = append(force, fmt.Sprintf("%v=%v", Kind(k), a))
		}
	}
	if force != nil {
		env = append(env, EnvAlgorithm+"="+strings.Join(force, ","))
	}
	return env
}

// settingsVersion begins the settings as bytes. It changes when what the settings
// mean does: two members that choose differently by the same values must not meet.
const settingsVersion = 1

// AppendBinary appends the settings as bytes, which are the same if and only if the
// settings are.
func (s Settings) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, settingsVersion)
	for _, n := range s.numbers() {
		b = binary.LittleEndian.AppendUint32(b, uint32(*n.value))
	}
	for _, a := range s.Force {
		b = append(b, byte(a))
	}
	return b, nil
}

// ParseBinary takes settings from the beginning of b and returns how many bytes they
// have. Errors: [ErrSettings], also for settings that are not valid.
func (s *Settings) ParseBinary(b []byte) (int, error) {
	var parsed Settings
	numbers := parsed.numbers()
	size := 1 + 4*len(numbers) + kinds
	switch {
	case len(b) == 0:
		return 0, fmt.Errorf("%w: no bytes", ErrSettings)
	case b[0] != settingsVersion:
		return 0, fmt.Errorf("%w: version %d, here it is %d", ErrSettings, b[0], settingsVersion)
	case len(b) < size:
		return 0, fmt.Errorf("%w: %d bytes of %d", ErrSettings, len(b), size)
	}
	for i, n := range numbers {
		*n.value = int(int32(binary.LittleEndian.Uint32(b[1+4*i:])))
	}
	for k := range parsed.Force {
		parsed.Force[k] = Algorithm(b[1+4*len(numbers)+k])
	}
	if err := parsed.Validate(); err != nil {
		return 0, err
	}
	*s = parsed
	return size, nil
}

// Diff names what differs between the settings of two members: "COLL_XSIZE is 1024
// and 2048". It is empty if nothing does.
func Diff(a, b Settings) string {
	var differ []string
	theirs := b.numbers()
	for i, n := range a.numbers() {
		if *n.value != *theirs[i].value {
			differ = append(differ, fmt.Sprintf("%s is %d and %d", n.variable, *n.value, *theirs[i].value))
		}
	}
	for k := range a.Force {
		if a.Force[k] != b.Force[k] {
			differ = append(differ, fmt.Sprintf("%s has %v=%v and %v", EnvAlgorithm, Kind(k), a.Force[k], b.Force[k]))
		}
	}
	return strings.Join(differ, ", ")
}

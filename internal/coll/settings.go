package coll

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrSettings means that a setting is invalid.
var ErrSettings = errors.New("coll: invalid setting")

// SettingError reports an invalid setting: the variable, its value and the reason.
type SettingError struct {
	Variable, Value string
	Reason          string
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("coll: %s=%q: %s", e.Variable, e.Value, e.Reason)
}

// Unwrap returns [ErrSettings].
func (e *SettingError) Unwrap() error { return ErrSettings }

// The environment variables that [ParseSettings] reads. The first two have the names of the values
// that IMPI 0.0 negotiates (C_COLL_XSIZE, C_COLL_MAXLINEAR). A value of -1, or none, means the
// default.
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

// Settings are the thresholds by which [Settings.Choose] selects an algorithm. All members of a job
// must have the same. The zero value is not valid; see [DefaultSettings].
type Settings struct {
	// XSize is the vector size in bytes from which the algorithms for long vectors are
	// used. Default 1024, as in IMPI.
	XSize int
	// MaxLinear is the number of members up to which short collectives are linear.
	// Between hosts, it counts hosts. Default 4, as in IMPI.
	MaxLinear int

	// Block is the smallest block, in bytes, for which it pays to halve a long vector
	// down to a block for each member: halving has twice the messages of doubling, and
	// moves and combines the bytes 2 times instead of log2 n. Default XSize/16: up to 16
	// members, vectors are long from XSize on.
	Block int
	// RingBlock is the block size, in bytes, from which blocks go around a ring. A ring
	// has 2(n-1) successive messages instead of 2 log2 n, and moves fewer bytes if n is
	// not a power of two. Default 256·XSize: on tcp a ring gains nothing below 2 MiB
	// (bench tune), and by the model at 64 hosts it takes twice the time of halving at
	// 16 KiB.
	RingBlock int
	// Pipeline is the vector size, in bytes, from which vectors pass along a chain in
	// segments, if there are more segments than members: a chain moves each byte once,
	// the others twice. Default 2048·XSize: below, chains of 4 ranks took longer than
	// trees on tcp (bench tune).
	Pipeline int
	// Segment is the size of a segment in bytes, for [Shape].Segment. Default 32·XSize:
	// transferring a segment takes longer than starting its message, and it is still in
	// the cache when it is passed on.
	Segment int
	// ScatterBlock is the block size, in bytes, from which a broadcast is a scatter and an
	// allgather: it has up to n successive messages, and moves the vector twice instead of
	// log2 n times. Default XSize/4: by the model 1 MiB reaches 4096 hosts in a fifth of
	// the time of a tree (bench scale).
	ScatterBlock int
	// BruckBlock is the block size, in bytes, from which a block of an alltoall goes
	// straight to its member, and not through others, which moves it log2 n times. Default
	// XSize/4.
	BruckBlock int
	// PairBlock is the block size, in bytes, from which members of an alltoall exchange
	// with one other at a time, so that receivers are not overrun. Default 32·XSize.
	PairBlock int

	// Force is the algorithm to use for each kind wherever it is possible; [Auto] leaves
	// the choice. DeriveSettings does not set it.
	Force [kinds]Algorithm
}

const (
	defaultXSize     = 1024 // IMPI 0.0, C_COLL_XSIZE
	defaultMaxLinear = 4    // IMPI 0.0, C_COLL_MAXLINEAR
	mostBytes        = 1 << 30
	mostMembers      = 1 << 20
)

// DefaultSettings returns the settings without any variable set.
func DefaultSettings() Settings { return DeriveSettings(defaultXSize, defaultMaxLinear) }

// DeriveSettings derives the finer thresholds from the two that IMPI defines.
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

// Variables returns the names of all variables that [ParseSettings] reads.
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

// Validate returns a [SettingError] for the first invalid setting, or nil. Sizes are at most 2^30
// bytes, members at most 2^20.
func (s Settings) Validate() error {
	for _, n := range s.numbers() {
		if *n.value < n.least || *n.value > n.most {
			return &SettingError{n.variable, strconv.Itoa(*n.value), fmt.Sprintf("must be from %d to %d", n.least, n.most)}
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
	return fmt.Sprintf("not an algorithm of %v; choose from %s", k, strings.Join(names, ", "))
}

// ParseSettings reads the environment variables through getenv. Those not set, or set to -1, have
// their defaults; the finer thresholds are derived from the first two. [EnvAlgorithm] is a list of
// kind=algorithm separated by commas: "allreduce=ring,bcast=binomial". Errors: [SettingError].
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
			return Settings{}, &SettingError{n.variable, text, fmt.Sprintf("must be from %d to %d, or -1 for the default", n.least, n.most)}
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
			reason = fmt.Sprintf("%q: want KIND=ALGORITHM, such as allreduce=ring", item)
		case !known:
			reason = fmt.Sprintf("unknown kind %q; choose from %s", kind, strings.Join(kindNames[:], ", "))
		case seen[k]:
			reason = fmt.Sprintf("%v is set twice", k)
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

// Environ returns the variables that produce these settings, as NAME=value, without those whose
// value is the default.
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

// settingsVersion is the first byte of the encoded settings. It changes when their meaning does:
// members that would choose differently by the same values must not join one job.
const settingsVersion = 1

// AppendBinary appends the encoded settings, which are equal if and only if the settings are.
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

// ParseBinary parses settings at the beginning of b and returns the number of bytes read. Errors:
// [ErrSettings], also for settings that are not valid.
func (s *Settings) ParseBinary(b []byte) (int, error) {
	var parsed Settings
	numbers := parsed.numbers()
	size := 1 + 4*len(numbers) + kinds
	switch {
	case len(b) == 0:
		return 0, fmt.Errorf("%w: no bytes", ErrSettings)
	case b[0] != settingsVersion:
		return 0, fmt.Errorf("%w: version %d, want %d", ErrSettings, b[0], settingsVersion)
	case len(b) < size:
		return 0, fmt.Errorf("%w: %d bytes, want %d", ErrSettings, len(b), size)
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

// Diff says what differs between the settings of two members, as in "COLL_XSIZE is 1024 and 2048";
// it returns "" if nothing does. What both derive from the first two is left out: these differ, too.
func Diff(a, b Settings) string {
	var differ []string
	theirs := b.numbers()
	da, db := DeriveSettings(a.XSize, a.MaxLinear), DeriveSettings(b.XSize, b.MaxLinear)
	ours, others := da.numbers(), db.numbers()
	for i, n := range a.numbers() {
		derived := i >= 2 && *n.value == *ours[i].value && *theirs[i].value == *others[i].value
		if *n.value != *theirs[i].value && !derived {
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

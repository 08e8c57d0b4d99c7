//go:build linux

package shm

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, fields ...string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(fields, ""), " ", ""))
	require.NoError(t, err)
	return b
}

func TestHelloGolden(t *testing.T) {
	h := hello{major: 4, minor: 0, features: 0, arch: archCode(), pageSize: uint32(os.Getpagesize()), probeAddr: 0x1122334455667788, ctrlSize: 0x90000}
	for i := range h.from {
		h.from[i], h.to[i] = byte(i), byte(0xf0+i)
	}
	want := unhex(t,
		"534c55434553484d",                 // magic: "SLUCESHM"
		"0400 0000",                        // version 4.0
		"00000000",                         // features
		"01000000",                         // architecture: amd64
		"00100000",                         // page size 4096
		"000102030405060708090a0b0c0d0e0f", // from
		"f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", // to
		"8877665544332211",                 // address of the control segment
		"0000090000000000",                 // its size
	)
	if archCode() != 1 || os.Getpagesize() != 4096 {
		copy(want[16:24], h.append(nil)[16:24]) // of this machine
	}
	require.Equal(t, want, h.append(nil))
	got, err := parseHello(want)
	require.NoError(t, err)
	require.Equal(t, h, got)
}

func TestHelloRefuses(t *testing.T) {
	good := hello{major: wireMajor, arch: archCode(), pageSize: uint32(os.Getpagesize())}
	for name, c := range map[string]struct {
		mend func(h *hello)
		says string
	}{
		"version":      {func(h *hello) { h.major = 9 }, "peer speaks version 9.0, this process 4.0"},
		"architecture": {func(h *hello) { h.arch = 77 }, "peer's architecture code is 77"},
		"page size":    {func(h *hello) { h.pageSize = 12345 }, fmt.Sprintf("peer's page size is 12345 bytes, this process has %d", os.Getpagesize())},
	} {
		t.Run(name, func(t *testing.T) {
			h := good
			c.mend(&h)
			_, err := parseHello(h.append(nil))
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := parseHello(good.append(nil)[1:])
	require.ErrorIs(t, err, errWire)
	_, err = parseHello(make([]byte, helloLen))
	require.ErrorIs(t, err, errWire)
}

func TestCtlGolden(t *testing.T) {
	for name, c := range map[string]struct {
		msg  ctl
		wire []byte
	}{
		"arena": {ctl{kind: ctlArena, arena: 3, size: 0x100000}, unhex(t,
			"01000000 00000000 00000000 00000000 00000000", "03000000", "0000000000000000", "0000000000000000", "0000100000000000")},
		"open": {ctl{kind: ctlOpen, src: 0x123456, dst: 0x00abcd, inc: 7, psn: 0x654321, arena: 1, offset: 0x2000}, unhex(t,
			"02000000", "56341200", "cdab0000", "07000000", "21436500", "01000000", "0000000000000000", "0020000000000000", "0000000000000000")},
		"close": {ctl{kind: ctlClose, src: 2, dst: 3, inc: 4}, unhex(t,
			"03000000", "02000000", "03000000", "04000000", "00000000 00000000 0000000000000000", "0000000000000000", "0000000000000000")},
		"closed": {ctl{kind: ctlClosed, src: 3, dst: 2, inc: 4}, unhex(t,
			"04000000", "03000000", "02000000", "04000000", "00000000 00000000 0000000000000000", "0000000000000000", "0000000000000000")},
		"cma": {ctl{kind: ctlCMA, size: 1}, unhex(t,
			"05000000", "00000000 00000000 00000000 00000000 00000000 0000000000000000", "0000000000000000", "0100000000000000")},
		"gone": {ctl{kind: ctlGone, arena: 3}, unhex(t,
			"06000000 00000000 00000000 00000000 00000000", "03000000", "0000000000000000", "0000000000000000", "0000000000000000")},
		"ask": {ctl{kind: ctlAsk, arena: 3, size: 5}, unhex(t,
			"07000000 00000000 00000000 00000000 00000000", "03000000", "0000000000000000", "0000000000000000", "0500000000000000")},
		"answer": {ctl{kind: ctlAnswer, arena: 3, size: 5}, unhex(t,
			"08000000 00000000 00000000 00000000 00000000", "03000000", "0000000000000000", "0000000000000000", "0500000000000000")},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.wire, c.msg.append(nil))
			got, err := parseCtl(c.wire)
			require.NoError(t, err)
			require.Equal(t, c.msg, got)
		})
	}
}

func FuzzParseCtl(f *testing.F) {
	f.Add(ctl{kind: ctlOpen, src: 1, dst: 2, inc: 3, psn: 4, arena: 5, offset: 6}.append(nil))
	f.Add(ctl{kind: ctlArena, arena: 1, size: 1 << 20}.append(nil))
	f.Add(ctl{kind: ctlGone, arena: 1}.append(nil))
	f.Add(make([]byte, ctlLen))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseCtl(b)
		if err == nil {
			require.Equal(t, b, m.append(nil))
		} else {
			require.ErrorIs(t, err, errWire)
		}
	})
}

func FuzzParseHello(f *testing.F) {
	f.Add(hello{major: wireMajor, arch: archCode(), pageSize: uint32(os.Getpagesize()), ctrlSize: 1}.append(nil))
	f.Add(make([]byte, helloLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil {
			require.Equal(t, b, h.append(nil))
		}
	})
}

// The machine: sizes and costs of one IPU.
#pragma once
#include <poplar/Types.hpp>
#include <poplar/exceptions.hpp>

namespace poplar {
enum class TargetType { IPU, IPU_MODEL, CPU };

class Target {
  friend struct IPUModel;
  friend class Device;
  TargetType type_ = TargetType::IPU_MODEL;
  std::string arch_ = "ipu2";
  unsigned tiles_ = 1472, bytes_ = 638976, workers_ = 6, exchange_bytes_ = 4, sync_cycles_ = 90;
  double hz_ = 1.33e9;

public:
  static constexpr unsigned exchangeSetupCycles = 100;  // of an exchange, before its first byte; a planner's constant
  TargetType getTargetType() const { return type_; }
  std::string getTargetArchString() const { return arch_; }
  unsigned getNumIPUs() const { return 1; }
  unsigned getNumTiles() const { return tiles_; }
  unsigned getTilesPerIPU() const { return tiles_; }
  unsigned getBytesPerTile() const { return bytes_; }
  unsigned getNumWorkerContexts() const { return workers_; }
  unsigned getExchangeBytesPerCycle() const { return exchange_bytes_; }
  unsigned getMemcpyBytesPerCycle() const { return 4; }  // a load and a store of 8 bytes are two instructions
  unsigned getMaxIPUSyncDelay() const { return sync_cycles_; }
  double getTileClockFrequency() const { return hz_; }
  unsigned getDataPathWidth() const { return 64; }
  unsigned getFloatVectorWidth() const { return 2; }
  unsigned getTypeSize(const Type &t) const { return t.size; }
};

class Device {
  friend struct IPUModel;
  Target target_;

public:
  const Target &getTarget() const { return target_; }
  unsigned getId() const { return 0; }
  bool attach() const { return true; }
  void detach() const {}
  static Device createCPUDevice(unsigned = 1) {
    Device d;
    d.target_.type_ = TargetType::CPU;
    d.target_.tiles_ = 1;
    return d;
  }
};

struct IPUModel {
  std::string IPUVersion;
  unsigned numIPUs = 1, tilesPerIPU = 1472, numWorkerContexts = 6, memoryBytesPerTile = 638976;
  unsigned exchangeBytesPerCycle = 4, minIPUSyncDelay = 90;
  double tileClockFrequency = 1.33e9;
  bool compileIPUCode = true;
  explicit IPUModel(const char *version = "ipu2") : IPUVersion(version) {
    if (IPUVersion == "ipu1") {
      tilesPerIPU = 1216;
      memoryBytesPerTile = 262144;
      tileClockFrequency = 1.6e9;
    } else if (IPUVersion != "ipu2" && IPUVersion != "ipu21") {
      throw poplar_error("Unknown IPU version '" + IPUVersion + "'");
    }
  }
  Device createDevice(OptionFlags = {}, bool = false, unsigned = ~0u) const {
    Device d;
    Target &t = d.target_;
    t.arch_ = IPUVersion;
    t.tiles_ = tilesPerIPU;
    t.bytes_ = memoryBytesPerTile;
    t.workers_ = numWorkerContexts;
    t.exchange_bytes_ = exchangeBytesPerCycle;
    t.sync_cycles_ = minIPUSyncDelay;
    t.hz_ = tileClockFrequency;
    return d;
  }
};

struct DeviceManager {
  static DeviceManager createDeviceManager() { return {}; }
  std::size_t getNumDevices() const { return 0; }
  std::vector<Device> getDevices(TargetType type, unsigned = 1, const OptionFlags & = {}) const {
    if (type == TargetType::CPU) return {Device::createCPUDevice()};
    return {};  // there is no hardware behind an emulation
  }
};
} // namespace poplar
